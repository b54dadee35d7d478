"""Attention as its definition has it: every pass over the score matrix is made and can be seen."""

import math

import torch
from torch import Tensor

from peakward.lab.ops.attention.mask import causal_mask


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, window: int | None, bias: Tensor | None
) -> Tensor:
    """softmax(q·kᵀ/√d + bias)·v over the allowed keys (Vaswani et al. 2017, equation 1).

    Args:
        q: (batch, heads, seq_len, head_dim).
        k, v: (batch, kv_heads, seq_len, head_dim); kv_heads divides heads.
        window: see `mask.causal_mask`.
        bias: added to the scaled scores, broadcast to (batch, heads, seq_len, seq_len).

    Returns:
        (batch, heads, seq_len, head_dim) in q's dtype. The softmax is taken in at least fp32.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = (q @ k.mT) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~causal_mask(q.shape[2], window, q.device), -math.inf)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.to(v.dtype) @ v
