"""Peakward's flash attention as the decoder calls attention."""

from torch import Tensor

from peakward.lab.ops.flash_attention.api import flash_attention

IMPLEMENTATIONS = {"flash": "triton", "flash-hopper": "hopper"}
"""By the setting's name that of `flash_attention`."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None,
    bias: Tensor | None,
    implementation: str,
) -> Tensor:
    """As `reference.attention`, of as many queries as keys.

    Raises:
        ValueError: a bias; and what `flash_attention` raises.
    """
    if bias is not None:
        raise ValueError("attention: expected no bias for Peakward's kernels, got one; take sdpa")
    reach = None if window is None or window >= k.shape[2] else window
    return flash_attention(q, k, v, causal=True, window=reach, implementation=implementation)
