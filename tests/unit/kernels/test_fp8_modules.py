"""Linear layers of a model in fp8 by their names, for a program of the user's."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.kernels import fp8_layers
from peakward.kernels.ops.forwards import states
from peakward.kernels.ops.fp8_linear.api import fp8_linear, fp8_scales

WIDTH = 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(12))
        self.odd = nn.Linear(WIDTH, 10)
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, x):
        for block in self.blocks[:2]:
            x = block(x)
        return self.head(x), self.odd(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def called(model, x):
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        return model(x)


def changed(model):
    return {name for name, each in model.named_modules() if states(each) and not [*each.children()]}


def test_names_are_paths_in_which_a_star_is_any_number(model):
    assert fp8_layers(model, ["blocks.*.up", "blocks.3.down", "head"]) == 14
    assert changed(model) == {*(f"blocks.{i}.up" for i in range(12)), "blocks.3.down", "head"}


def test_a_layer_computes_as_fp8_linear_and_keeps_its_own_scales():
    torch.manual_seed(0)
    model, scales = nn.Sequential(nn.Linear(WIDTH, 48)), fp8_scales("cpu")
    fp8_layers(model, ["0"])
    for size in (1.0, 3.0):
        x = (size * torch.randn(16, WIDTH)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            mine = model(x)
            theirs = fp8_linear(x, model[0].weight, model[0].bias, scales)
        assert torch.equal(mine, theirs)
        wanted, upstream = (x, *model.parameters()), torch.randn_like(mine)
        gradients = (torch.autograd.grad(each, wanted, upstream) for each in (mine, theirs))
        assert all(map(torch.equal, *gradients))
    assert all(map(torch.equal, states(model), scales))


def test_what_fp8_does_not_take_is_as_it_was(model):
    plain, x = copy.deepcopy(model), torch.randn(15, WIDTH)
    fp8_layers(model, ["blocks.*.up", "head"])
    assert torch.equal(called(model, x)[0], called(plain, x)[0])
    assert torch.equal(model(x)[0], plain(x)[0])  # In fp32.
    assert not torch.equal(called(model, x[:0].new_ones(16, WIDTH))[0], called(plain, x)[0][:1])


def test_what_is_in_fp64_stays_so_under_autocast(model):
    """As an oracle for levers on top of it is."""
    plain, x = copy.deepcopy(model).double(), torch.randn(16, WIDTH, dtype=torch.float64)
    fp8_layers(model, ["blocks.*.up", "head"])
    assert torch.equal(called(model.double(), x)[0], called(plain, x)[0])


def test_state_dict_and_copies_are_plain(model):
    keys = list(model.state_dict())
    fp8_layers(model, ["blocks.*.up"])
    other = copy.deepcopy(model)
    assert list(model.state_dict()) == keys
    assert not changed(other) and type(other) is Model
    assert fp8_layers(other, ["blocks.*.up"]) == 12


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["blocks.*.up", "blocks.*.gate"], "got 'blocks.*.gate' of none"),
        (["blocks.up"], "got 'blocks.up' of none"),
        (["blocks.*"], "got 'blocks.0', which is a Block"),
        (["head", "odd"], "got 'odd', which has sides that are no multiples of 16"),
    ],
)
def test_other_names_are_refused_and_nothing_is_changed(model, names, said):
    with pytest.raises(ValueError) as refused:
        fp8_layers(model, names)
    assert said in str(refused.value)
    assert not changed(model)


def test_a_second_call_is_refused(model):
    fp8_layers(model, ["head"])
    with pytest.raises(
        ValueError, match="'head', which is a Linear with a forward pass of its own"
    ):
        fp8_layers(model, ["head"])


def test_a_model_that_is_moved_afterwards_is_compiled_once():
    """As of a factory that builds on the host."""
    with torch.device("meta"):
        model = Model()
    fp8_layers(model, ["blocks.*.up", "blocks.*.down"])
    model.to_empty(device="cpu")
    for each in model.parameters():
        nn.init.normal_(each, std=0.1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    for _ in range(2):
        called(model, torch.randn(16, WIDTH, requires_grad=True))[0].sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert all(each.any() for block in model.blocks[:2] for each in states(block))


def test_a_program_may_compile_the_whole_model_without_a_break():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, 16))
    fp8_layers(model, ["0", "2"])
    x = torch.randn(16, WIDTH)
    plain = called(model, x)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(called(compiled, x), plain, atol=2e-2)
