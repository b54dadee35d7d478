"""The gradient of cross-entropy in one pass over the logits."""

import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.cross_entropy.triton.settings import Settings, cut, gradient_settings_for
from peakward.kernels.ops.cross_entropy.triton.slopes import (
    weight_of_row,
    write_edges,
    write_inside,
)
from peakward.kernels.ops.recording import launch


@triton.jit
def cross_entropy_backward(  # type: ignore[no-untyped-def]
    logits_ptr,
    targets_ptr,
    sums_ptr,
    count_ptr,
    grad_loss_ptr,
    grad_lse_ptr,
    gradient_ptr,
    stride,
    vocab,
    n_parts,
    ignore_index,
    smoothing,
    HAS_GRAD_LSE: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """A block of a row: logits and gradient of one stride, or the same."""
    BLOCK: tl.constexpr = LANES * VECTOR
    row = (tl.program_id(0) // n_parts).to(tl.int64)
    target = tl.load(targets_ptr + row)
    best = tl.load(sums_ptr + 2 * row)
    total = tl.load(sums_ptr + 2 * row + 1)
    scale = tl.div_rn(tl.load(grad_loss_ptr).to(tl.float32), tl.load(count_ptr))
    g = weight_of_row(target, vocab, scale, ignore_index)
    h = 0.0
    counts = target != ignore_index
    if HAS_GRAD_LSE:
        h = tl.load(grad_lse_ptr + row).to(tl.float32)
        counts = counts | (h != 0)
    weight = tl.div_rn(g + h, total)
    shared = (target, best, weight, g, smoothing, vocab, counts)
    at = row * stride
    part = tl.program_id(0) % n_parts
    write_inside(logits_ptr, gradient_ptr, at, part * BLOCK, *shared, LANES, VECTOR)
    if part == 0:
        write_edges(logits_ptr, gradient_ptr, at, *shared, VECTOR)


def gradient(
    logits: Tensor,
    targets: Tensor,
    sums: Tensor,
    count: Tensor,
    grad_loss: Tensor,
    out: Tensor,
    *,
    grad_lse: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    settings: Settings | None = None,
) -> None:
    """`reference.gradient` into `out`: of the logits' type and strides, or the logits themselves."""
    n_tokens, vocab = logits.shape
    chosen = settings or gradient_settings_for(logits.element_size())
    n_parts = triton.cdiv(vocab, chosen.block)
    if not n_tokens:
        return
    launch(
        cross_entropy_backward,
        (n_tokens * n_parts,),
        logits,
        targets,
        sums,
        count,
        grad_loss,
        grad_lse if grad_lse is not None else sums,
        out,
        logits.stride(0),
        vocab,
        n_parts,
        ignore_index,
        label_smoothing,
        HAS_GRAD_LSE=grad_lse is not None,
        **cut(chosen, logits),
    )
