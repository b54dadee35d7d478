"""Levers applied to a module from outside."""

import pytest
import torch
import transformers
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from peakward.lab.levers.compilation import is_compiled
from peakward.lab.levers.module_levers import compile_in_place, ranged, recompute
from peakward.records.errors import PeakwardError


def n_calls(module, monkeypatch, ids):
    """How often blocks run in a forward and a backward pass."""
    calls = []
    kind = type(module.blocks[0])
    plain = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: calls.append(1) or plain(self, x))
    return calls


@pytest.mark.parametrize(("mode", "n"), [("none", 2), ("every-block", 4), ("selective", 4)])
def test_each_block_is_run_again_in_the_backward_pass(mode, n, tiny_gpt, monkeypatch):
    torch.manual_seed(0)
    module = tiny_gpt.build()
    calls = n_calls(module, monkeypatch, None)
    recompute(module, mode)
    module(torch.zeros(2, 8).long()).sum().backward()
    assert len(calls) == n


def test_what_dropout_drops_is_dropped_alike_again(tiny_gpt):
    torch.manual_seed(0)
    module = tiny_gpt.build()
    found = []
    for mode in ("none", "every-block"):
        recompute(module, mode)
        torch.manual_seed(1)
        module.zero_grad()
        module(torch.zeros(2, 8).long()).square().mean().backward()
        found.append([each.grad.clone() for each in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_cache_is_not_filled_again(kind):
    """transformers' models make one in every pass by default; a mask of the batch then no longer fits."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    if kind == "llama":
        sizes |= {"intermediate_size": 64, "num_key_value_heads": 2}
    made = transformers.AutoConfig.for_model(kind, **sizes)
    if kind == "gpt2":
        made.resid_pdrop = made.embd_pdrop = made.attn_pdrop = 0.0
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(made)
    ids, mask = torch.randint(64, (2, 8)), torch.ones(2, 8).long()
    mask[:, 6:] = 0
    found = []
    for mode in ("none", "every-block"):
        undo = recompute(module, mode)
        module.zero_grad()
        module(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
        found.append([each.grad.clone() for each in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    with torch.no_grad():
        found = module(input_ids=ids)
        kept = found["cache" if "cache" in found else "past_key_values"]  # Since transformers 5.24.
        assert kept.get_seq_length() == 8
    undo()


class Keeps(nn.Module):
    """A block that is given a cache."""

    def __init__(self):
        super().__init__()
        self.linear, self.given = nn.Linear(4, 4), []

    def forward(self, x, cache=None):
        self.given.append(cache)
        return self.linear(x)


def test_an_empty_cache_of_a_state_space_has_no_length(monkeypatch):
    """That of transformers' Mamba: asked for one it raises."""
    made = transformers.MambaConfig(hidden_size=4, num_hidden_layers=2)
    cache = transformers.DynamicCache(config=made)
    module = nn.ModuleList([Keeps(), Keeps()])
    recompute(nn.ModuleDict({"blocks": module}), "every-block")
    x = torch.ones(1, 2, 4)
    module[0](x, cache=cache)
    monkeypatch.setattr(transformers.DynamicCache, "has_previous_state", lambda self: True)
    module[0](x, cache=cache)
    assert module[0].given == [None, cache]


def test_a_block_in_several_places_is_compiled_once_and_taken_back():
    """Written like ALBERT's."""
    block = nn.Sequential(nn.Linear(4, 4))
    module = nn.ModuleDict({"blocks": nn.ModuleList([block] * 3)})
    undo = compile_in_place(module, "default", "block")
    assert is_compiled(block)
    undo()
    assert not is_compiled(block)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.mean = self.mean + x.detach().mean()
        return self.linear(x)


@pytest.mark.parametrize(
    ("block", "name"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "1.num_batches_tracked"),
        (lambda: nn.Sequential(spectral_norm(nn.Linear(4, 4))), "0.parametrizations.weight.0._u"),
        (Counts, "mean"),
    ],
)
def test_blocks_that_write_a_buffer_in_training_are_refused(block, name):
    module = nn.Sequential(block(), block())
    undo = recompute(module, "every-block")
    x = torch.randn(3, 4)
    module.eval()
    module(x).sum().backward()
    module.train()
    with torch.no_grad():
        module(x)
    with pytest.raises(PeakwardError, match=f"got one that writes {name}:") as refused:
        module(x)
    assert "\n" not in str(refused.value)
    undo()
    module(x).sum().backward()


def test_without_blocks_nothing_can_be_recomputed(tiny_gpt):
    with pytest.raises(
        PeakwardError, match="expected a module that repeats blocks in a ModuleList"
    ):
        recompute(tiny_gpt.without_blocks(), "every-block")


@pytest.mark.parametrize(
    ("factory", "scope", "whole"),
    [("build", "block", False), ("build", "model", True), ("without_blocks", "block", True)],
)
def test_blocks_are_compiled_or_the_whole(factory, scope, whole, tiny_gpt):
    module = getattr(tiny_gpt, factory)()
    compile_in_place(module, "default", scope)
    assert is_compiled(module) == whole
    assert all(is_compiled(each) == (not whole) for each in module.blocks)


def test_blocks_run_in_ranges_while_it_lasts(tiny_gpt):
    module = tiny_gpt.build()
    before = [dict(vars(each)) for each in module.blocks]
    with ranged(module), torch.profiler.profile() as seen:
        module(torch.zeros(2, 8).long())
    names = [each.name for each in seen.events() if each.name.startswith("peakward::")]
    assert names == ["peakward::block 0", "peakward::block 1"]
    assert [dict(vars(each)) for each in module.blocks] == before
