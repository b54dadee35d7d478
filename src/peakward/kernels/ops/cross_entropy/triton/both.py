"""Losses and their gradient, where the gradient's scale is known before the loss is."""

import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.cross_entropy.triton.rows import loss_of_row, sums_of_row
from peakward.kernels.ops.cross_entropy.triton.settings import Settings, cut, settings_of_both
from peakward.kernels.ops.cross_entropy.triton.slopes import (
    weight_of_row,
    write_edges,
    write_inside,
)
from peakward.kernels.ops.recording import launch


@triton.jit
def cross_entropy_both(  # type: ignore[no-untyped-def]
    logits_ptr,
    targets_ptr,
    losses_ptr,
    lse_ptr,
    stride,
    vocab,
    ignore_index,
    smoothing,
    SMOOTHS: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Loss of a row, then its gradient over its logits, read again from the L2."""
    BLOCK: tl.constexpr = LANES * VECTOR
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    at = row * stride
    best, total, plain = sums_of_row(logits_ptr, at, vocab, SMOOTHS, LANES, VECTOR)
    loss = loss_of_row(
        logits_ptr, target, at, vocab, best, total, plain, smoothing, ignore_index, SMOOTHS
    )
    tl.store(losses_ptr + row, loss)
    tl.store(lse_ptr + row, best + tl.log(total))
    counts = target != ignore_index
    g = weight_of_row(target, vocab, 1.0, ignore_index)
    weight = tl.div_rn(g, total)
    shared = (target, best, weight, g, smoothing, vocab, counts)
    # Every thread must have read the target's logit before one writes over it.
    tl.debug_barrier()
    for start in range(0, vocab, BLOCK):
        write_inside(logits_ptr, logits_ptr, at, start, *shared, LANES, VECTOR)
    write_edges(logits_ptr, logits_ptr, at, *shared, VECTOR)


def losses_and_gradient(
    logits: Tensor,
    targets: Tensor,
    each: Tensor,
    lse: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    settings: Settings | None = None,
) -> None:
    """Writes every row's loss and log-sum-exp, (tokens,) of fp32, and the gradient of the losses'
    sum over the logits.

    From memory a row comes once if rows in work fit into the L2: few programs with many warps.
    """
    n_tokens, vocab = logits.shape
    if not n_tokens:
        return
    chosen = settings or settings_of_both(vocab, logits.element_size())
    launch(
        cross_entropy_both,
        (n_tokens,),
        logits,
        targets,
        each,
        lse,
        logits.stride(0),
        vocab,
        ignore_index,
        label_smoothing,
        SMOOTHS=label_smoothing > 0,
        **cut(chosen, logits),
    )
