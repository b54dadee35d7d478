"""Our kernels, under the names that a case asks for them by."""

from torch import Tensor

from peakward.lab.ops.flash_attention.api import flash_attention

IMPLEMENTATIONS = {"flash": "triton", "flash-hopper": "hopper"}
"""Of `flash_attention`, by the name of the attention."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None,
    bias: Tensor | None,
    implementation: str,
) -> Tensor:
    """As `reference.attention`, without a bias.

    Raises:
        ValueError: a bias, or what `flash_attention` does not take.
    """
    if bias is not None:
        raise ValueError(f"expected no bias with our attention kernels, got {tuple(bias.shape)}")
    return flash_attention(q, k, v, causal=True, window=window, implementation=implementation)
