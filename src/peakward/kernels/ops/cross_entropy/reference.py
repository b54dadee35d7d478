"""Cross-entropy as its definition has it, and the gradient that follows, each in a few lines."""

import torch
from torch import Tensor


def cross_entropy(
    logits: Tensor, targets: Tensor, *, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The mean over rows of -Σ q·log softmax(logits), where q is 1 - ε at the target and ε/vocab
    everywhere besides (Szegedy et al. 2016, section 7).

    Args:
        logits: (tokens, vocab).
        targets: (tokens,) of int64, each within the vocabulary or `ignore_index`, whose rows count
            neither in the sum nor among what it is divided by.
        label_smoothing: ε.

    Returns:
        The mean, a scalar, NaN where no row counts; and log Σ exp(logits) of every row, (tokens,).
        Both in at least fp32.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counts = targets != ignore_index
    lse = wide.logsumexp(-1)
    target_logits = wide.gather(-1, targets.where(counts, 0)[:, None])[:, 0]
    losses = lse - (1 - label_smoothing) * target_logits
    if label_smoothing:
        losses = losses - label_smoothing * wide.mean(-1)
    return losses.where(counts, 0).sum() / counts.sum(), lse


def gradient(
    logits: Tensor,
    targets: Tensor,
    grad_loss: Tensor,
    grad_lse: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """softmax·(g + h) - q·g, where g is grad_loss over the rows that count, for those, and h
    grad_lse: of what `cross_entropy` gives, (tokens, vocab) in at least fp32."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counts = targets != ignore_index
    g = (grad_loss / counts.sum()).where(counts, 0)[:, None]
    q = torch.full_like(wide, label_smoothing / wide.shape[1])
    q.scatter_add_(
        1,
        targets.where(counts, 0)[:, None],
        torch.full_like(wide[:, :1], 1 - label_smoothing),
    )
    return wide.softmax(-1) * (g + grad_lse[:, None]) - q * g
