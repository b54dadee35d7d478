"""What the optimiser refuses."""

import copy

import pytest
import torch

from peakward.kernels.ops import launchable
from peakward.kernels.ops.adamw.api import TritonAdamW


def test_refuses_parameters_off_the_gpu(monkeypatch):
    monkeypatch.setattr(launchable, "interprets", lambda: False)
    with pytest.raises(ValueError, match="TritonAdamW: expected tensors on a CUDA device, got cpu"):
        TritonAdamW([torch.nn.Parameter(torch.zeros(3))])


@pytest.mark.parametrize(
    ("parameter", "got"),
    [
        (torch.zeros(3, dtype=torch.float64), r"got torch.float64 with strides \(1,\)"),
        (torch.zeros(3, 2).t(), r"got torch.float32 with strides \(1, 2\)"),
    ],
)
def test_refuses_what_the_kernel_cannot_take(parameter, got):
    with pytest.raises(ValueError, match=f"expected contiguous parameters in float32, .* {got}"):
        TritonAdamW([{"params": [torch.nn.Parameter(parameter)]}])


def moments(states, *shape):
    """Both moments of a state, as the optimiser keeps them."""
    if states != "8bit":
        return {name: torch.full(shape, 0.5) for name in ("exp_avg", "exp_avg_sq")}
    return {
        f"{name}_{part}": torch.zeros(size, dtype=torch.uint8)
        for name in ("exp_avg", "exp_avg_sq")
        for part, size in (("codes", shape), ("exponents", (1,)))
    }


@pytest.mark.parametrize("states", ["as parameters", "bf16", "8bit"])
def test_refuses_the_state_of_other_parameters_and_keeps_its_own(monkeypatch, states):
    monkeypatch.setattr(launchable, "interprets", lambda: True)
    optimizer = TritonAdamW([torch.nn.Parameter(torch.zeros(64))], states=states)
    stored = optimizer.state_dict()
    stored["state"] = {0: {"step": torch.tensor(3.0), **moments(states, 64)}}
    optimizer.load_state_dict(stored)
    other = copy.deepcopy(stored)
    other["state"][0].update(moments(states, 8))
    other["param_groups"][0]["lr"] = 7.0
    with pytest.raises(
        ValueError, match=r"expected exp_avg of shape \(64,\), as its parameter, got \(8,\)"
    ) as refused:
        optimizer.load_state_dict(other)
    assert "\n" not in str(refused.value)
    assert optimizer.param_groups[0]["lr"] == 1e-3
    (kept,) = optimizer.state.values()
    assert {each.shape for name, each in kept.items() if name.endswith(("avg", "codes"))} == {(64,)}


def test_refuses_the_state_of_another_optimiser(monkeypatch):
    monkeypatch.setattr(launchable, "interprets", lambda: True)
    parameter = torch.nn.Parameter(torch.zeros(3))
    momentum = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
    parameter.grad = torch.ones(3)
    momentum.step()
    with pytest.raises(ValueError, match="an AdamW with exp_avg, got one with momentum_buffer"):
        TritonAdamW([parameter]).load_state_dict(momentum.state_dict())
