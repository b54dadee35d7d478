"""The loss behind the output layer, by name; Peakward's in Triton's interpreter."""

import pytest
import torch
from torch import nn

from peakward.kernels.ops.loss.api import IMPLEMENTATIONS, implementation

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")


def outcome(name, dtype):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 7, 16, generator=generator).to(dtype).requires_grad_()
    head = nn.Linear(16, 33, bias=False)
    head.weight.data = torch.randn(33, 16, generator=generator)
    head = head.to(dtype)
    targets = torch.randint(33, (2, 7), generator=generator)
    targets[0, :3] = -100
    loss = implementation(name)(head, hidden, targets)
    loss.backward()
    return [loss.detach(), hidden.grad, head.weight.grad]


@pytest.mark.parametrize("name", ["fused", "chunked", "recomputed"])
def test_it_is_torchs(name):
    found, base = outcome(name, torch.float32), outcome("torch", torch.float32)
    for mine, plain, exact in zip(found, base, outcome("torch", torch.float64), strict=True):
        bound = 2 * (plain.double() - exact).norm() + 2.0**-23 * exact.norm()
        assert (mine.double() - exact).norm() <= bound


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_of_16_bit_logits_it_is_in_fp32(name):
    assert outcome(name, torch.float16)[0].dtype == torch.float32


def test_an_unknown_name_is_refused():
    with pytest.raises(
        ValueError, match="the loss of torch, fused, chunked, recomputed, got 'fsed'"
    ):
        implementation("fsed")


@pytest.mark.parametrize("name", ["chunked", "recomputed"])
def test_logits_that_are_there_are_refused_to_a_loss_that_makes_them(name):
    logits, targets = torch.zeros(2, 7, 33), torch.zeros(2, 7, dtype=torch.int64)
    with pytest.raises(ValueError, match=f"a linear layer for the head of {name}, got Identity"):
        implementation(name)(nn.Identity(), logits, targets)
