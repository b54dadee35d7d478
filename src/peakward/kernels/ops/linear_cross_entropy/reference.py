"""Cross-entropy of a projection onto the vocabulary, with all of its logits there to be seen."""

import torch
from torch import Tensor


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, ignore_index: int
) -> Tensor:
    """The mean of -log softmax(hidden·weightᵀ) at the targets, a scalar in at least fp32.

    Args:
        hidden: (tokens, d).
        weight: (vocab, d), of hidden's type.
        targets: (tokens,) of int64, each within the vocabulary or `ignore_index`, whose rows count
            neither in the sum nor among what it is divided by.
    """
    logits = _logits(hidden, weight)
    counts = targets != ignore_index
    picked = logits.gather(-1, targets.where(counts, 0)[:, None])[:, 0]
    return (logits.logsumexp(-1) - picked).where(counts, 0).sum() / counts.sum()


def gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, grad_loss: Tensor, *, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """G·weight and Gᵀ·hidden, where G = (softmax - one-hot)·grad_loss / rows that count: of hidden
    and of weight, in at least fp32."""
    slope = _logits(hidden, weight).softmax(-1)
    counts = targets != ignore_index
    at = targets.where(counts, 0)[:, None]
    slope = slope.scatter_add(1, at, -torch.ones_like(slope[:, :1]))
    slope = slope * (grad_loss / counts.sum()).where(counts, 0)[:, None]
    return slope @ weight.to(slope.dtype), slope.mT @ hidden.to(slope.dtype)


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    return hidden.to(dtype) @ weight.to(dtype).mT
