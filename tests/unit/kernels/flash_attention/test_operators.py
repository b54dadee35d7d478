"""Which implementation the operators call, forward and for the gradients."""

import pytest
import torch

from peakward.kernels.ops.flash_attention import operators
from peakward.kernels.ops.flash_attention.api import flash_attention


class Recorded:
    """Gives zeros, and notes who was asked for what."""

    def __init__(self, name, asked):
        self.name, self.asked = name, asked

    def forward(self, q, *_):
        self.asked.append(("forward", self.name))
        return torch.zeros_like(q), q.new_zeros(q.shape[:3], dtype=torch.float32)

    def backward(self, _dout, _dlse, q, k, v, *_):
        self.asked.append(("backward", self.name))
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


@pytest.fixture
def asked(monkeypatch):
    found = []
    monkeypatch.setattr(operators, "implementation", lambda name: Recorded(name, found))
    monkeypatch.setattr(operators, "require_launchable", lambda *_: None)
    return found


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize("name", operators.IMPLEMENTATIONS)
def test_who_gave_the_result_takes_its_gradients(name, head_dim, asked):
    q = torch.zeros(1, 1, 3, head_dim, dtype=torch.bfloat16, requires_grad=True)
    flash_attention(q, q, q, causal=True, implementation=name).sum().backward()
    assert asked == [("forward", name), ("backward", name)]
