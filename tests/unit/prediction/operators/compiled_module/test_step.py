"""Captured steps with compiled parts: a hand-written module, and one of transformers."""

from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.lab.models.given_module import repeated_blocks
from peakward.lab.models.module_capture import capture_module
from peakward.prediction.operators.compiled_module.step import compiled_step
from peakward.records.op_graph import WAITS


class Block(nn.Module):
    """Gated, with a bias, dropout and a norm written out."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        gate, up = self.up(self.norm(x)).chunk(2, -1)
        return x + self.drop(self.down(F.gelu(gate) * up))


class Tower(nn.Module):
    def __init__(self, n_layers=3, width=256):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(n_layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).float(), x.new_zeros(len(x), dtype=torch.long))


class Branches(nn.Module):
    """Two layers that autocast casts one input for."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.left, self.right = (nn.Linear(256, 256, bias=False) for _ in range(2))

    def forward(self, x):
        y = self.norm(x)
        return self.left(y) * self.right(y)


@pytest.mark.parametrize(("pass_", "n_casts"), [("forward", 2), ("forward_backward", 1)])
def test_equal_casts_are_one_where_torch_cuts_a_graph_for_its_backward_pass(pass_, n_casts):
    """Of a graph without one torch 2.13 writes each: Granite's blocks store a norm's result three times for
    queries, keys and values."""
    blocks = nn.Sequential(Branches(), Branches())
    found = capture_module(
        blocks,
        (torch.zeros(64, 256),),
        pass_=pass_,
        loss=lambda y: y.float().sum(),
        autocast=torch.bfloat16,
        autocast_cache=False,
        compiled=list(blocks),
    )
    norms = [
        each
        for each in compiled_step(found).graph.operators
        if each.phase == "forward" and each.name == "inductor.inner_reduction"
    ]
    written = [
        x for each in norms for x in each.outputs if (x.shape, x.dtype) == ((64, 256), "bfloat16")
    ]
    assert sum(each.count for each in written) == n_casts * len(norms)


def tower():
    with torch.device("meta"):
        return Tower(), (torch.zeros(512, 256),), {}


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        "llama",
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=512,
        vocab_size=1000,
    )
    ids = torch.zeros(2, 256, dtype=torch.long)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return module, (), {"input_ids": ids, "labels": ids, "use_cache": False}


@lru_cache
def captured(make, scope, pass_="train_step"):
    module, args, kwargs = make()
    module.train(pass_ != "forward")
    parts = {"none": [], "blocks": list(repeated_blocks(module)), "model": [module]}[scope]
    return capture_module(module, args, kwargs, pass_=pass_, compiled=parts)


def totals(graph):
    """(FLOPs, bytes, calls) of what is not the optimizer."""
    found = [each for each in graph.operators if each.phase != "optimizer"]
    moved = sum(each.count * (each.bytes_read + each.bytes_written) for each in found)
    return sum(each.count * each.flops for each in found), moved, sum(each.count for each in found)


@pytest.mark.parametrize("make", [tower, llama])
def test_compiling_leaves_the_products_and_spares_traffic_and_launches(make):
    eager = totals(captured(make, "none").graph)
    blocks = totals(compiled_step(captured(make, "blocks")).graph)
    whole = totals(compiled_step(captured(make, "model")).graph)
    assert blocks[0] == eager[0]
    assert blocks[1] < eager[1]
    assert whole[2] < blocks[2] < eager[2]


def test_the_whole_moves_less_than_its_blocks():
    """Of transformers' models it builds a mask that the blocks are given none of."""
    blocks, whole = (
        totals(compiled_step(captured(tower, scope)).graph) for scope in ("blocks", "model")
    )
    assert whole[0] == blocks[0]
    assert whole[1] < blocks[1]


@pytest.mark.parametrize("make", [tower, llama])
def test_the_optimizer_stays_as_it_is(make):
    def update(graph):
        return {each for each in graph.operators if each.phase == "optimizer"}

    found = captured(make, "blocks")
    assert update(compiled_step(found).graph) == update(found.graph) != set()


def test_blocks_are_alike_and_are_one_code_each_a_call():
    step = compiled_step(captured(llama, "blocks"))
    assert len(step.codes) == 3
    assert len({id(each) for each in step.codes}) == 1
    assert dict(step.n_graphs) == {"forward": 3, "backward": 3}
    assert step.n_parameters == 3 * 9
    whole = compiled_step(captured(llama, "model"))
    assert dict(whole.n_graphs) == {"forward": 1, "backward": 1}
    assert whole.n_eager["forward"] == 0


def test_no_kernel_goes_over_the_end_of_a_block():
    """The sum behind one block and the norm before the next are one kernel of the whole model alone."""

    def with_norm_and_sum(step):
        return sum(
            each.count
            for each in step.graph.operators
            if {"aten.add", "aten.native_layer_norm"} <= set(each.fused)
            if each.phase == "forward"
        )

    assert with_norm_and_sum(compiled_step(captured(tower, "blocks"))) == 0
    assert with_norm_and_sum(compiled_step(captured(tower, "model"))) == 2


def test_a_pass_without_gradients_has_no_backward_graph():
    step = compiled_step(captured(tower, "blocks", "forward"))
    assert dict(step.n_graphs) == {"forward": 3}
    assert {each.phase for each in step.graph.operators} == {"forward"}


def test_logits_that_the_whole_model_returns_get_a_gradient_of_zeros():
    """A model of transformers returns them beside the loss; blocks return nothing of the kind."""

    def zeros(scope):
        step = compiled_step(captured(llama, scope))
        found = [each for each in step.graph.operators if each.name == "aten.zeros"]
        return [each.outputs[0].shape for each in found if each.phase == "backward"]

    assert zeros("model") == [(512, 1000)]
    assert zeros("blocks") == []


class Caching(nn.Module):
    """Keeps what it computes on the way, as a cache of keys does."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, x):
        key = x.exp()
        if self.kept is not None:
            self.kept.append(key)
        return key.sin()


@pytest.mark.parametrize("kept", [None, []])
def test_what_a_part_leaves_in_a_cache_is_written(kept):
    module = nn.Sequential(Caching(kept), Caching(None))
    found = capture_module(module, (torch.zeros(8, 8),), compiled=list(module))
    first = compiled_step(found).codes[0].forward
    assert [len(each.writes) for each in first] == [1 if kept is None else 2]


def test_a_step_is_told_alike_each_time():
    def fresh():
        module, args, _ = tower()
        return capture_module(module, args, pass_="train_step", compiled=list(module.blocks))

    assert compiled_step(fresh()).graph == compiled_step(fresh()).graph


class Masked(Tower):
    """Writes over a part of what the products made."""

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            x[:, :1] = 0
            x[..., 1].zero_()
        return self.head(x).float().square().mean()


def masked():
    with torch.device("meta"):
        return Masked(), (torch.zeros(512, 256),), {}


@pytest.mark.parametrize("scope", ["blocks", "model"])
def test_a_part_that_is_written_over_leaves_what_made_the_rest(scope):
    eager = totals(captured(masked, "none", "forward_backward").graph)
    found = totals(compiled_step(captured(masked, scope, "forward_backward")).graph)
    assert found[0] == eager[0]


class Halves(nn.Module):
    """Writes one result in two parts, as latent attention its keys."""

    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Linear(256, 256, bias=False) for _ in range(2))
        self.down = nn.Linear(512, 256, bias=False)

    def forward(self, x):
        both = x.new_empty(64, 512)
        both[:, :256], both[:, 256:] = self.left(x), self.right(x)
        return self.down(both)


def test_what_is_written_by_parts_is_one_kernel_s_whole_result():
    blocks = nn.Sequential(Halves(), Halves())
    found = capture_module(blocks, (torch.zeros(64, 256),), compiled=list(blocks))
    (kernel,) = [x for x in compiled_step(found).graph.operators if x.fused]
    assert (kernel.bytes_written, kernel.bytes_read) == (64 * 512 * 4, 2 * 64 * 256 * 4)
    assert kernel.count == len(blocks)


def test_a_number_in_compiled_code_is_a_constant():
    """Eagerly it is copied to the device; a compiler knows it, and its kernels are those of one that is made
    there."""

    class Scaled(nn.Module):
        def __init__(self, make):
            super().__init__()
            self.make = make

        def forward(self, x):
            return (x * self.make(x.device)).relu()

    def launched(make):
        module = Scaled(make)
        found = capture_module(module, (torch.zeros(64, 64),), compiled=[module])
        return compiled_step(found)

    copied = launched(lambda on: torch.tensor(2.0, device=on))
    made = launched(lambda on: torch.full((), 2.0, device=on))
    assert not {each.name for each in copied.graph.operators} & WAITS
    assert copied.n_launched == made.n_launched == {"forward": 1}
    assert copied.n_graphs == made.n_graphs
