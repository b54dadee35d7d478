"""Attention by its definition: every pass over the score matrix is explicit and can be seen."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from peakward.kernels.ops.attention.mask import causal_mask, sees_all

Opened = Callable[[str], AbstractContextManager[object]]
"""opened(name): open for as long as its `with` block lasts."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, window: int | None, bias: Tensor | None
) -> Tensor:
    """softmax(q·kᵀ/√d + bias)·v over the allowed keys (Vaswani et al. 2017, equation 1).

    Args:
        q: (batch, heads, seq_len, head_dim).
        k, v: (batch, kv_heads, seq_len, head_dim); kv_heads divides heads. More of them than one
            query are those in its reach, its own the last (`inference.cache`).
        window: see `mask.causal_mask`.
        bias: added to the scaled scores, broadcast to (batch, heads, seq_len, keys).

    Returns:
        (batch, heads, seq_len, head_dim) in q's dtype. The softmax is taken in at least fp32.
    """
    k, v = for_every_head(q, k, v)
    scores = masked_scores(q, k, window=window, bias=bias)
    weights = softmax(scores)
    return mix(weights, v)


def attention_in_ranges(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None,
    bias: Tensor | None,
    opened: Opened,
) -> Tensor:
    """`attention`, with `opened` around each of its parts: "scores", "softmax" and "values"."""
    k, v = for_every_head(q, k, v)
    with opened("scores"):
        scores = masked_scores(q, k, window=window, bias=bias)
    with opened("softmax"):
        weights = softmax(scores)
    with opened("values"):
        return mix(weights, v)


def for_every_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """k and v of (batch, heads, keys, head_dim): repeated where q's heads share them."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    return k, v


def masked_scores(q: Tensor, k: Tensor, *, window: int | None, bias: Tensor | None) -> Tensor:
    """q·kᵀ/√d + bias of (batch, heads, seq_len, keys), minus infinity where not allowed."""
    scores = (q @ k.mT) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    if sees_all(q, k):
        return scores
    return scores.masked_fill(~causal_mask(q.shape[2], window, q.device), -math.inf)


def softmax(scores: Tensor) -> Tensor:
    """Over the keys, in at least fp32."""
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """weights·v in v's dtype: (batch, heads, seq_len, head_dim)."""
    return weights.to(v.dtype) @ v
