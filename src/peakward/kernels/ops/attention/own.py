"""Peakward's own attention kernels as the decoder calls attention."""

from torch import Tensor

from peakward.kernels.ops.decode_attention.api import decode_attention
from peakward.kernels.ops.flash_attention.api import flash_attention

IMPLEMENTATIONS = {"flash": "triton", "flash-hopper": "hopper"}
"""The implementation of `flash_attention`, by the name of the setting."""
DECODE = "flash-decode"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None,
    bias: Tensor | None,
    implementation: str,
) -> Tensor:
    """As `reference.attention`, for as many queries as keys.

    Raises:
        ValueError: a bias; and what `flash_attention` raises.
    """
    _require_no_bias(bias)
    return flash_attention(q, k, v, causal=True, window=window, implementation=implementation)


def attention_to_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None,  # noqa: ARG001 (the cache gives what is in reach)
    bias: Tensor | None,
) -> Tensor:
    """As `reference.attention`, for one query that sees all keys. It has no gradient.

    Raises:
        ValueError: several queries, a bias; and what `decode_attention` raises.
    """
    _require_no_bias(bias)
    if q.shape[2] > 1:
        raise ValueError(
            f"attention: expected one query over a cache for {DECODE}, got {q.shape[2]} queries; "
            "take flash"
        )
    return decode_attention(q, k, v)


def _require_no_bias(bias: Tensor | None) -> None:
    if bias is not None:
        raise ValueError("attention: expected no bias for Peakward's kernels, got one; take sdpa")
