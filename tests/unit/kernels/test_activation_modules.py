"""Activations that modules write out, found by what they compute and given torch's one call."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.kernels import fuse_activations
from peakward.kernels.ops.activation_modules.api import activation_of, replace_activations

CPU = torch.device("cpu")


class NewGelu(nn.Module):
    """As minGPT's."""

    def forward(self, x):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class Erf(nn.Module):
    def forward(self, value):
        return value * 0.5 * (1.0 + torch.erf(value / math.sqrt(2.0)))


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Wide(NewGelu):
    """Its result is in fp32, whatever goes in."""

    def forward(self, x):
        return super().forward(x.float())


FOUND = {"gelu of tanh": NewGelu, "gelu": Erf, "silu": Swish}


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * torch.sigmoid(self.slope * x)


class Clipped(NewGelu):
    def forward(self, x):
        return super().forward(x).clip(-10, 10)


class Quick(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Noisy(NewGelu):
    def forward(self, x):
        return super().forward(x) + (0.01 * torch.randn_like(x) if self.training else 0)


class Detached(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x).detach()


class Called(nn.Module):
    """One call of torch already."""

    def forward(self, x):
        return F.gelu(x, approximate="tanh")


class OfRows(nn.Module):
    """Looks at its neighbours."""

    def forward(self, x):
        return x * torch.sigmoid(x) + 0 * x.mean() + (x.amax() > 60) * 1.0


@pytest.mark.parametrize(("name", "make"), FOUND.items())
def test_what_it_computes_is_found(name, make):
    assert activation_of(make(), CPU).name == name


@pytest.mark.parametrize(
    "make",
    [
        *(Slope, Clipped, Quick, Noisy, Detached, Called, OfRows),
        *(nn.GELU, nn.SiLU, nn.Identity, nn.Dropout, nn.Tanh),
    ],
)
def test_what_is_another_or_has_one_call_stays(make):
    module, state = make(), torch.get_rng_state()
    assert activation_of(module, CPU) is None
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("make", [*FOUND.values(), Wide])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cast", [False, True])
def test_values_gradients_and_types_stay(make, dtype, cast):
    module = make()
    x = torch.linspace(-6, 6, 101).to(dtype).requires_grad_()

    def results():
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            y = module(x)
        return y, *torch.autograd.grad(y.float().square().sum(), x)

    before = results()
    assert fuse_activations(module) == 1
    bound = 16 * torch.finfo(dtype).eps
    for one, other in zip(results(), before, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)


def test_a_model_keeps_its_names_hooks_and_copies_and_gets_its_own_back():
    torch.manual_seed(0)  # Of some numbers both forms round alike.
    model = nn.Sequential(nn.Linear(4, 8), NewGelu(), nn.Linear(8, 4), nn.GELU())
    calls, x = [], torch.randn(3, 4)
    model[1].register_forward_hook(lambda *_: calls.append(1))
    before, names = model(x), list(model.state_dict())
    replaced, again = replace_activations(model), replace_activations(model)
    assert (replaced.n, again.n) == (1, 1)
    assert not torch.equal(model(x), before)
    assert list(model.state_dict()) == names
    assert len(calls) == 2
    model[1]._forward_hooks.clear()
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(made[1]) is NewGelu
        assert torch.equal(made(x), before)
    replaced.undo()
    again.undo()
    assert type(model[1]) is NewGelu
    assert torch.equal(model(x), before)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gelu_new", "gelu of tanh"),
        ("gelu_fast", "gelu of tanh"),
        ("gelu_python", "gelu"),
        ("gelu", None),
        ("gelu_pytorch_tanh", None),
        ("gelu_10", None),
        ("quick_gelu", None),
        ("silu", None),
    ],
)
def test_those_of_transformers(name, expected):
    made = pytest.importorskip("transformers.activations").ACT2FN[name]
    found = activation_of(made, CPU)
    assert (found and found.name) == expected


class Mended(nn.Module):
    def forward(self, x):
        return torch.nan_to_num(x * torch.sigmoid(x))


def test_what_guards_against_nan_is_left():
    assert activation_of(Mended(), CPU) is None
