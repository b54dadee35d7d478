"""Looks at what modules compute."""

import copy

import pytest
import torch
from torch import nn

from peakward.kernels.ops.norm_modules.behaviour import norm_of
from peakward.kernels.ops.probing import Results, Types, copied, found_in, probed, probing

CPU = torch.device("cpu")
FP32, BF16 = torch.float32, torch.bfloat16


class Part(nn.Module):
    def __init__(self, eps=1e-5, config=None):
        super().__init__()
        self.weight, self.eps, self.config = nn.Parameter(torch.randn(4)), eps, config


def test_of_parts_that_are_alike_one_is_looked_at():
    config = {"unhashable": 1}
    model = nn.Sequential(
        Part(), Part(), Part(eps=1e-6), Part(config=config), Part(config=config), Part(config={})
    )
    asked = []

    def look(module):
        asked.append(module)
        return getattr(module, "eps", None)

    found = found_in(model, look)
    assert found == {1e-5: [model[0], model[1], *model[3:]], 1e-6: [model[2]]}
    assert asked == [model, model[0], model[2], model[3], model[5]]


@pytest.mark.parametrize("other", [1, True, 1.0])
def test_equal_numbers_of_two_types_are_not_alike(other):
    kinds = [each for each in (1, True, 1.0) if type(each) is not type(other)]
    model = nn.Sequential(Part(other), *map(Part, kinds))
    asked = []
    found_in(model, asked.append)
    assert len(asked) == 4


class Unwieldy:
    def __deepcopy__(self, memo):
        raise AssertionError

    def __call__(self, *_args):
        raise AssertionError


def test_hooks_are_neither_copied_nor_called():
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_forward_hook(Unwieldy())
    made = copied(module)
    assert made(torch.ones(1, 2)).shape == (1, 2)
    assert len(module[0]._forward_hooks) == 1


def test_what_raises_is_not_found_and_random_states_stay():
    state = torch.get_rng_state()

    def look():
        torch.randn(3)
        raise LookupError

    assert probed(look, CPU) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_probe_is_differentiated_and_not_cast_whatever_surrounds_it():
    with torch.inference_mode(), torch.autocast("cpu", BF16), probing(CPU):
        x = torch.ones(2, 2, requires_grad=True)
        assert (x @ x).dtype == FP32
        assert (x @ x).requires_grad


def test_types_of_another_device_are_asked_for_once():
    asked = []

    def look(called, device):
        asked.append((called, device))
        return Results("cpu", (((FP32, None, None), FP32), ((FP32, None, BF16), BF16)))

    types = Types(Results("cuda", (((FP32, None, None), BF16),)), look)
    x = torch.ones(1)
    assert types.of("it", x, None) == FP32
    with torch.autocast("cpu", BF16):
        assert types.of("it", x, None) == BF16
    assert types.of("it", x.double(), None) is None
    assert asked == [("it", CPU)]


def test_a_copy_of_a_module_is_deep():
    module = Part()
    made = copied(module)
    made.weight.data.zero_()
    assert copy.copy(module).weight.any()


@pytest.mark.parametrize("default", ["device", "dtype"])
def test_torchs_defaults_change_no_probe(default):
    before = norm_of(Rms())
    was = torch.get_default_dtype()
    try:
        if default == "dtype":
            torch.set_default_dtype(BF16)
            found = norm_of(Rms())
        else:
            made = Rms()
            with torch.device("meta"):
                found = norm_of(made)
    finally:
        torch.set_default_dtype(was)
    assert found == before is not None


class Rms(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.gain * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
