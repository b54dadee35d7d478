"""The loss and its gradients where all logits fit: chunks' way with one chunk (`chunked`), of which the
logits' gradient is kept for the backward pass, and not the weight's.

By then what the losses' sum is multiplied by is known. It goes into hidden, a fraction of the weight's
size, so that d_weight is one product that writes it in its own type; chunks write d_weight in fp32, and
read and write it again to multiply it: 2.15 ms for 2.74 on an H100, 2,048 × 4,096 × 32,000. In exchange
hidden is rounded once more, where that number is no power of two.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.cross_entropy import triton
from peakward.kernels.ops.linear_cross_entropy import products
from peakward.kernels.ops.linear_cross_entropy.triton import scaled
from peakward.kernels.ops.linear_cross_entropy.workspace import row_length


def loss_and_slope(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int,
    loss_dtype: torch.dtype,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`reference.linear_cross_entropy`, and what `gradients` asks for.

    Args:
        of_hidden, of_weight: whether that gradient is wanted.

    Returns:
        The mean in `loss_dtype`; the number of rows that count, in fp32; and in hidden's type, of the
        losses' sum, the gradient of hidden and that of the logits as `products` wants its rows, of no
        elements where not wanted.
    """
    n_tokens, vocab = hidden.shape[0], weight.shape[0]
    losses, lse = hidden.new_empty(2, n_tokens, dtype=torch.float32).unbind()
    loss, count = hidden.new_empty((), dtype=loss_dtype), losses.new_empty(())
    d_hidden = hidden.new_empty(hidden.shape if of_hidden else (0, 0))
    rows = hidden.new_empty(n_tokens, row_length(vocab))
    products.logits(hidden, weight, rows)
    triton.losses_and_gradient(
        rows[:, :vocab], targets, losses, lse, ignore_index=ignore_index, label_smoothing=0.0
    )
    if of_hidden:
        products.to_hidden(rows, weight, d_hidden, first=True)
    triton.mean(losses, targets, loss, count, ignore_index=ignore_index)
    return loss, count, d_hidden, rows if of_weight else hidden.new_empty(0, 0)


def gradients(
    hidden: Tensor,
    d_hidden: Tensor,
    slope: Tensor,
    count: Tensor,
    grad_loss: Tensor,
    *,
    vocab: int,
    of_weight: bool,
) -> tuple[Tensor, Tensor]:
    """`reference.gradients` in hidden's type, of no elements where not wanted; zeros where no row counts,
    as torch has it."""
    dtype, count = hidden.dtype, count.clamp(min=1)
    d_weight = hidden.new_empty((vocab, hidden.shape[1]) if of_weight else (0, 0))
    if of_weight:
        products.to_weight(slope, scaled(hidden, grad_loss, count, dtype), d_weight, first=True)
    return scaled(d_hidden, grad_loss, count, dtype), d_weight
