"""Attention without a score matrix, by the name of its implementation, with gradients.

Causal means, as in FlashAttention since 2.1, that both sequences end together: query i sees keys up to
i + k_len - q_len. With equal lengths that is torch's `is_causal`. Rows that see no key are 0.
"""

import math

from torch import Tensor

from peakward.kernels.ops.flash_attention import checks
from peakward.kernels.ops.flash_attention.operators import attend, attend_packed


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    alibi_slopes: Tensor | None = None,
    scale: float | None = None,
    implementation: str = "triton",
) -> Tensor:
    """softmax(scale·q·kᵀ - slope·|distance|)·v over the keys that a query sees.

    Args:
        q: (batch, heads, q_len, head_dim) of fp32, fp16 or bf16, of any strides with the last dimension
        contiguous; head_dim 16 to 256.
        k, v: (batch, kv_heads, k_len, head_dim) of the same type; kv_heads divides heads.
        window: A query sees only keys less than `window` positions before its own; causal only. A
        window of at least k_len has no effect.
        alibi_slopes: (heads,) of fp32; the distance of query i and key j is |i + k_len - q_len - j|. No
        gradient is computed for them.
        scale: A factor above 0; 1/√head_dim by default.
        implementation: One of `operators.IMPLEMENTATIONS`.

    Returns:
        (batch, heads, q_len, head_dim) in q's type and layout. Autocast, which casts the inputs of
        torch's attention, changes nothing. The gradients are bitwise the same from call to call. Those
        of the implementation "hopper" depend, in their last bits, on the order of additions, and
        torch.use_deterministic_algorithms(True) refuses them.

    Raises:
        ValueError: The tensors are not as said above, or not on a GPU that the kernels run on.
    """
    out, _ = flash_attention_with_lse(
        q,
        k,
        v,
        causal=causal,
        window=window,
        alibi_slopes=alibi_slopes,
        scale=scale,
        implementation=implementation,
    )
    return out


def flash_attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    alibi_slopes: Tensor | None = None,
    scale: float | None = None,
    implementation: str = "triton",
) -> tuple[Tensor, Tensor]:
    """As `flash_attention`, with the natural logarithm of each row's sum of exponentials.

    Returns:
        The result of `flash_attention`, and (batch, heads, q_len) of fp32, minus infinity where a row
        sees no key. Both have gradients.
    """
    checks.require_rule(causal=causal, window=window, scale=scale)
    if q.dim() != 4 or k.dim() != 4:
        checks.require_dense(q, k, v)
    chosen = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    reach = _reach(window, k.shape[2])
    return attend(q, k, v, alibi_slopes, causal, reach, chosen, implementation)


def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    window: int | None = None,
    alibi_slopes: Tensor | None = None,
    scale: float | None = None,
    implementation: str = "triton",
) -> tuple[Tensor, Tensor]:
    """As `flash_attention_with_lse`, for sequences of unequal lengths one after the other.

    Args:
        q: (tokens, heads, head_dim) of all sequences.
        k, v: (tokens, kv_heads, head_dim).
        cu_seqlens_q, cu_seqlens_k: (batch + 1,) of int32 on q's device: the first token of each
        sequence, from 0, and the number of tokens. The values are not checked, because that would wait
        for the device: the caller ensures that they rise and end with the tokens.
        max_seqlen_q, max_seqlen_k: At least the longest sequence.

    Returns:
        (tokens, heads, head_dim) and (heads, tokens).
    """
    checks.require_packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    checks.require_rule(causal=causal, window=window, scale=scale)
    checks.require_slopes(alibi_slopes, q)
    return attend_packed(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        alibi_slopes,
        causal,
        _reach(window, max_seqlen_k),
        1 / math.sqrt(q.shape[-1]) if scale is None else scale,
        implementation,
    )


def _reach(window: int | None, k_len: int) -> int | None:
    """The window; None where all keys are within it. Kernels add it to positions in 32 bits."""
    return None if window is None or window >= k_len else window
