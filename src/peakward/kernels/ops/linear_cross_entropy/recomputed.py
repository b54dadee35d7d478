"""The loss without its logits, and its gradients by computing them again.

The forward pass writes no logits at all. In the backward pass the log-sum-exp is known, so that
chunks may run over the vocabulary: a kernel computes a chunk's logits again and stores their gradient
alone, in a workspace of bounded size, and cuBLAS makes of it a part of d_weight, whole, and one more
summand of d_hidden, in fp32 where there are several. A fourth product instead of a pass over the
logits, so that three quarters of the products' rate are the most it can reach; every sum has one order,
so that results are the same every time. Adding tiles to d_hidden and d_weight from within one kernel,
as Wijmans et al. (2024) do, would need locks.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.cross_entropy.triton import mean
from peakward.kernels.ops.linear_cross_entropy import products, triton
from peakward.kernels.ops.linear_cross_entropy.workspace import chunk_length, row_length


def loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int,
    loss_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.linear_cross_entropy` in `loss_dtype`, and what `gradients` asks for: of every row
    its maximum and its sum of exponentials, (tokens, 2), and the number of rows that count; fp32."""
    each, sums = triton.losses(hidden, weight, targets, ignore_index=ignore_index)
    loss, count = each.new_empty((), dtype=loss_dtype), each.new_empty(())
    mean(each, targets, loss, count, ignore_index=ignore_index)
    return loss, sums, count


def gradients(  # noqa: PLR0917 (what autograd kept)
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    sums: Tensor,
    count: Tensor,
    grad_loss: Tensor,
    *,
    ignore_index: int,
    n_bytes: int,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor]:
    """`reference.gradients` in the types of hidden and weight, of no elements where not wanted.

    Args:
        n_bytes: at most so many hold the gradient of a chunk's logits, or as many as 128 columns
            of it need.
    """
    n_tokens, vocab = hidden.shape[0], weight.shape[0]
    d_weight = weight.new_empty(weight.shape if of_weight else (0, 0))
    length = chunk_length(vocab, n_tokens * hidden.element_size(), n_bytes)
    total = hidden.new_empty(
        hidden.shape if of_hidden else (0, 0),
        dtype=hidden.dtype if length == vocab else torch.float32,
    )
    if not n_tokens:
        return total, d_weight.zero_()
    workspace = hidden.new_empty(n_tokens, row_length(length))
    for start in range(0, vocab, length):
        chunk = slice(start, min(start + length, vocab))
        n_words = chunk.stop - start
        rows = workspace[:, : row_length(n_words)]
        triton.gradient(
            hidden,
            weight,
            targets,
            sums,
            count,
            grad_loss,
            rows[:, :n_words],
            first_column=start,
            ignore_index=ignore_index,
        )
        products.clear_rest(rows, n_words)
        if of_weight:
            products.to_weight(rows, hidden, d_weight[chunk], first=True)
        if of_hidden:
            products.to_hidden(rows, weight[chunk], total, first=start == 0)
    return total.to(hidden.dtype), d_weight
