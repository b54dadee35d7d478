"""RoPE of a fused projection, by name; Peakward's in Triton's interpreter."""

import pytest
import torch

from peakward.kernels.ops.rotation.api import IMPLEMENTATIONS

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
HEADS = (4, 2)


def projected():
    """(batch, heads, seq_len, head_dim), token by token in memory, and its angles."""
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(2, 5, 8, 16, generator=generator).transpose(1, 2)
    angle = torch.randn(5, 8, generator=generator)
    return packed, angle.cos(), angle.sin()


def turned(name):
    packed, cos, sin = projected()
    packed = packed.clone(memory_format=torch.preserve_format).requires_grad_()
    q, k, v = IMPLEMENTATIONS[name](packed, cos, sin, *HEADS)
    sum((each * each.sin()).sum() for each in (q, k, v)).backward()
    return q.detach(), k.detach(), v.detach(), packed.grad


def test_both_turn_queries_and_keys_and_leave_values():
    for mine, torchs in zip(turned("fused"), turned("torch"), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=2.0**-20, atol=2.0**-19)


def test_the_fused_one_leaves_them_where_the_projection_does():
    for each, heads in zip(turned("fused")[:3], (4, 2, 2), strict=True):
        assert each.shape == (2, heads, 5, 16)
        assert each.stride() == (5 * 8 * 16, 16, 8 * 16, 1)


def test_without_a_gradient_it_turns_in_place():
    packed, cos, sin = projected()
    with torch.no_grad():
        q, *_ = IMPLEMENTATIONS["fused"](packed, cos, sin, *HEADS)
    assert q.untyped_storage().data_ptr() == packed.untyped_storage().data_ptr()
    torch.testing.assert_close(packed[:, :4], turned("torch")[0])
