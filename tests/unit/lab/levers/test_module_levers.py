"""Levers applied to a module from outside."""

import pytest
import torch

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
