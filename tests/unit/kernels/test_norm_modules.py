"""Norms that are modules of torch's and compute in Peakward's kernels, in Triton's interpreter."""

import pytest
import torch
from torch import nn

from peakward.kernels.ops.norm_modules.api import (
    FusedLayerNorm,
    FusedRMSNorm,
    as_autocast,
    of_sum,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
PAIRS = pytest.mark.parametrize(
    ("fused", "plain"), [(FusedRMSNorm, nn.RMSNorm), (FusedLayerNorm, nn.LayerNorm)]
)


def both(fused, plain):
    """Of equal parameters that are not ones."""
    generator = torch.Generator().manual_seed(0)
    made = [kind(24, eps=1e-5) for kind in (fused, plain)]
    for parameter in made[1].parameters():
        parameter.data = torch.randn(24, generator=generator)
    made[0].load_state_dict(made[1].state_dict())
    return made, torch.randn(2, 2, 5, 24, generator=generator)


@PAIRS
def test_it_is_torchs(fused, plain):
    (mine, torchs), (x, _) = both(fused, plain)
    torch.testing.assert_close(mine(x), torchs(x), rtol=2.0**-20, atol=2.0**-20)


@PAIRS
def test_the_norm_of_a_sum_and_the_sum_with_their_gradients(fused, plain):
    (mine, torchs), (x, added) = both(fused, plain)
    found = []
    for norm in (mine, torchs):
        leaves = [each.clone().requires_grad_() for each in (x, added)]
        if norm is mine:
            total, normed = of_sum(norm, *leaves)
        else:
            total = leaves[0] + leaves[1]
            normed = norm(total)
        ((total.sin() + normed) * normed).sum().backward()
        own = [each.grad for each in norm.parameters()]
        found.append([total.detach(), normed.detach(), *(each.grad for each in leaves), *own])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2.0**-18, atol=2.0**-18)


@PAIRS
def test_what_is_narrower_than_the_stream_is_added_to_it_first(fused, plain):
    (mine, _), (x, added) = both(fused, plain)
    total, normed = of_sum(mine, x, added.half())
    assert total.dtype == normed.dtype == torch.float32
    assert torch.equal(total, x + added.half())
    torch.testing.assert_close(normed, mine(total))


def test_under_autocast_a_norm_is_in_fp32():
    x = torch.ones(2, dtype=torch.bfloat16)
    assert as_autocast(x) is x
    with torch.autocast("cpu", torch.bfloat16):
        assert as_autocast(x).dtype == torch.float32
