"""The gate of a feed-forward network, by name; Peakward's in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

from peakward.kernels.ops.gating.api import IMPLEMENTATIONS

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")


def test_it_is_the_product_of_both_halves():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, 3, 40, generator=generator)
    found = []
    for gating in IMPLEMENTATIONS.values():
        x = drawn.clone().requires_grad_()
        y = gating(F.silu, x)
        assert y.shape == (2, 3, 20)
        y.square().sum().backward()
        found.append((y.detach(), x.grad))
    for mine, torchs in zip(*found, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=2.0**-20, atol=2.0**-20)


def test_another_activation_is_refused():
    with pytest.raises(ValueError, match="expected silu for the fused SwiGLU"):
        IMPLEMENTATIONS["fused"](F.gelu, torch.zeros(2, 4))
