"""The loss and its gradients by chunks of tokens: three products of cuBLAS a chunk, and between them
one kernel that turns the chunk's logits into their gradient where they lie (the way of Liger Kernel,
Hsu et al. 2024, section 3.2).

A chunk's logits exist, in a workspace of bounded size; nothing is computed twice. Gradients come with
the forward pass, since logits are only there once: of Σ losses, so that fp16 keeps small ones, and
the division by the count is left to the backward pass, which multiplies anyway. d_weight adds up in
fp32: after sixteen roundings to bf16 it would be three times as far off as torch's.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.cross_entropy import triton
from peakward.kernels.ops.linear_cross_entropy import products
from peakward.kernels.ops.linear_cross_entropy.triton import scaled
from peakward.kernels.ops.linear_cross_entropy.workspace import chunk_length, row_length


def loss_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int,
    loss_dtype: torch.dtype,
    n_bytes: int,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`reference.linear_cross_entropy`, and the gradients of the losses' sum.

    Args:
        n_bytes: at most so many hold a chunk's logits, or as many as 128 tokens of them need.
        of_hidden, of_weight: whether that gradient is wanted.

    Returns:
        The mean in `loss_dtype`; the number of rows that count, in fp32; d_hidden in hidden's type
        and d_weight in fp32, of no elements where not wanted.
    """
    n_tokens, vocab = hidden.shape[0], weight.shape[0]
    losses, lse = hidden.new_empty(2, n_tokens, dtype=torch.float32).unbind()
    loss, count = hidden.new_empty((), dtype=loss_dtype), losses.new_empty(())
    d_hidden = hidden.new_empty(hidden.shape if of_hidden else (0, 0))
    d_weight = losses.new_empty(weight.shape if of_weight else (0, 0))
    if of_weight and not n_tokens:
        d_weight.zero_()
    columns = row_length(vocab)
    length = chunk_length(n_tokens, columns * hidden.element_size(), n_bytes)
    workspace = hidden.new_empty(length, columns)
    sums = losses.new_empty(length, 2)
    for start in range(0, n_tokens, length or 1):
        chunk = slice(start, min(start + length, n_tokens))
        rows = workspace[: chunk.stop - start]
        products.logits(hidden[chunk], weight, rows)
        of_rows = (rows[:, :vocab], targets[chunk], losses[chunk], lse[chunk])
        if not (of_hidden or of_weight):
            triton.losses(*of_rows, sums, ignore_index=ignore_index, label_smoothing=0.0)
            continue
        triton.losses_and_gradient(*of_rows, ignore_index=ignore_index, label_smoothing=0.0)
        if of_hidden:
            products.to_hidden(rows, weight, d_hidden[chunk], first=True)
        if of_weight:
            products.to_weight(rows, hidden[chunk], d_weight, first=start == 0)
    triton.mean(losses, targets, loss, count, ignore_index=ignore_index)
    return loss, count, d_hidden, d_weight


def gradients(
    d_hidden: Tensor, d_weight: Tensor, count: Tensor, grad_loss: Tensor
) -> tuple[Tensor, Tensor]:
    """`reference.gradients` in the type of hidden; zeros where no row counts, as torch has it."""
    count = count.clamp(min=1)
    d_hidden, d_weight = (
        scaled(each, grad_loss, count, d_hidden.dtype) for each in (d_hidden, d_weight)
    )
    return d_hidden, d_weight
