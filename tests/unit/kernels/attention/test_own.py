"""Peakward's flash attention as the decoder calls it, in Triton's interpreter."""

import pytest
import torch

from peakward.kernels.ops.attention import reference
from peakward.kernels.ops.attention.api import implementation
from peakward.kernels.ops.attention.own import DECODE, IMPLEMENTATIONS
from peakward.kernels.ops.flash_attention import operators

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")


def inputs(n_kv_heads=2, seq_len=19):
    generator = torch.Generator().manual_seed(0)
    q, *kv = (
        torch.randn(2, n, seq_len, 16, generator=generator) for n in (4, n_kv_heads, n_kv_heads)
    )
    return q, *kv


def outcome(attention, tensors, upstream, window):
    leaves = [each.clone().requires_grad_() for each in tensors]
    out = attention(*leaves, window=window, bias=None)
    out.backward(upstream)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("window", [None, 5, 19, 40])
def test_it_is_attention(window):
    tensors = inputs()
    upstream = torch.randn(2, 4, 19, 16, generator=torch.Generator().manual_seed(1))
    found = outcome(implementation("flash"), tensors, upstream, window)
    doubled = [each.double() for each in tensors]
    oracle = outcome(reference.attention, doubled, upstream.double(), window)
    base = outcome(reference.attention, tensors, upstream, window)
    for mine, plain, exact in zip(found, base, oracle, strict=True):
        bound = 2 * (plain.double() - exact).norm()
        assert (mine.double() - exact).norm() <= bound


@pytest.mark.parametrize("name", [*IMPLEMENTATIONS, DECODE])
def test_a_bias_is_refused(name):
    q, k, v = inputs()
    with pytest.raises(ValueError, match="expected no bias for Peakward's kernels, got one"):
        implementation(name)(q, k, v, window=None, bias=torch.zeros(4, 19, 19))


def test_the_kernel_for_hopper_is_never_another():
    q = torch.zeros(1, 2, 8, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match="expected a GPU for the implementation 'hopper'"):
        implementation("flash-hopper")(q, q, q, window=None, bias=None)


def test_every_implementation_has_a_name():
    assert set(IMPLEMENTATIONS.values()) == set(operators.IMPLEMENTATIONS)


@pytest.mark.parametrize("n_kv_heads", [1, 4])
def test_one_token_over_a_cache(n_kv_heads):
    q, k, v = inputs(n_kv_heads)
    q = q[:, :, -1:]
    found, base = (
        attention(q, k, v, window=None, bias=None)
        for attention in (implementation(DECODE), reference.attention)
    )
    exact = reference.attention(q.double(), k.double(), v.double(), window=None, bias=None)
    assert (found.double() - exact).norm() <= 2 * (base.double() - exact).norm()


def test_several_tokens_are_refused_to_the_kernel_of_one():
    q, k, v = inputs()
    with pytest.raises(
        ValueError, match="expected one query over a cache for flash-decode, got 19"
    ):
        implementation(DECODE)(q, k, v, window=None, bias=None)
