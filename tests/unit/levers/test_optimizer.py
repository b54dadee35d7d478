"""AdamW by each implementation against its formula in plain Python."""

import math

import pytest
import torch
from torch import nn

from peakward.kernels.ops import launchable
from peakward.kernels.ops.adamw import stored
from peakward.levers.optimizer import AXIS, BLOCK, LEARNING_RATE, OWN, adamw, moment_sizes

IMPLEMENTATIONS = ("adamw-loop", "adamw-foreach", "adamw-fused")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_is_adamw(implementation):
    """Loshchilov & Hutter 2019, algorithm 2, with torch's defaults: β 0.9 and 0.999, ε 1e-8, and
    a decay of 0.01."""
    generator = torch.Generator().manual_seed(0)
    model = nn.ParameterList(
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(3, 4), (5,)]
    )
    optimizer = adamw(model, implementation, capturable=False)
    expected = [p.detach().flatten().tolist() for p in model]
    m, v = ([[0.0] * len(values) for values in expected] for _ in range(2))
    for t in range(1, 6):
        for k, parameter in enumerate(model):
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            for i, g in enumerate(parameter.grad.flatten().tolist()):
                m[k][i] = 0.9 * m[k][i] + 0.1 * g
                v[k][i] = 0.999 * v[k][i] + 0.001 * g * g
                step = (m[k][i] / (1 - 0.9**t)) / (math.sqrt(v[k][i] / (1 - 0.999**t)) + 1e-8)
                expected[k][i] -= LEARNING_RATE * (0.01 * expected[k][i] + step)
        optimizer.step()
    for parameter, wanted in zip(model, expected, strict=True):
        assert parameter.flatten().tolist() == pytest.approx(wanted, rel=1e-14, abs=1e-17)


@pytest.mark.parametrize(
    ("implementation", "foreach", "fused"),
    [
        ("adamw-loop", False, False),
        ("adamw-foreach", True, False),
        ("adamw-fused", False, True),
    ],
)
def test_is_the_implementation_asked_for(implementation, foreach, fused):
    group = adamw(nn.Linear(2, 2), implementation, capturable=True).param_groups[0]
    assert (group["foreach"], group["fused"], group["capturable"]) == (foreach, fused, True)


@pytest.mark.parametrize("value", OWN)
def test_our_kernel_is_refused_without_cuda(monkeypatch, value):
    monkeypatch.setattr(launchable, "interprets", lambda: False)
    with pytest.raises(ValueError, match="on a CUDA device, got cpu"):
        adamw(nn.Linear(2, 2), value, capturable=False)


@pytest.mark.parametrize("value", OWN)
def test_our_kernel_holds_what_the_axis_says(monkeypatch, value):
    monkeypatch.setattr(launchable, "interprets", lambda: True)
    optimizer = adamw(nn.Linear(100, 7), value, capturable=False)
    assert optimizer.defaults["states"] == OWN[value]
    weight = optimizer.param_groups[0]["params"][0]
    optimizer._start([weight])
    moments = [each for name, each in optimizer.state[weight].items() if name != "step"]
    held = 2 * moment_sizes(value, 700, 4)
    assert sorted(each.nbytes for each in moments) == sorted(held)
    assert stored.BLOCK == BLOCK


def test_the_code_for_the_user_makes_it():
    for value, states in OWN.items():
        line = AXIS.code[value].once[0]
        assert ("states=" in line) == (states != "as parameters")
        assert states == "as parameters" or f'states="{states}"' in line
