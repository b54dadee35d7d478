"""The gradient of a row's loss, a block of whole vectors or its edges at a time."""

import triton
import triton.language as tl

from peakward.kernels.ops.rows.vectors import edges, whole_vectors


@triton.jit
def weight_of_row(target, vocab, scale, ignore_index):  # type: ignore[no-untyped-def]
    """The factor of the gradient of a row's loss: NaN where the loss is NaN."""
    known = (target >= 0) & (target < vocab)
    return tl.where(target == ignore_index, 0.0, tl.where(known, scale, float("nan")))


@triton.jit
def _slope(x, column, target, best, weight, g, smoothing, vocab, counts):  # type: ignore[no-untyped-def]
    """exp(x - best)·weight - q·g of logits in some columns; zeros in a row that does not count."""
    q = smoothing / vocab + tl.where(column == target.to(tl.int32), 1 - smoothing, 0.0)
    return tl.where(counts, tl.exp(x.to(tl.float32) - best) * weight - q * g, 0.0)


@triton.jit
def write_inside(  # type: ignore[no-untyped-def]
    from_ptr,
    to_ptr,
    at,
    start,
    target,
    best,
    weight,
    g,
    smoothing,
    vocab,
    counts,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The gradient of a block of whole vectors of the row from `at` on."""
    first, n_inside = whole_vectors(at, vocab, VECTOR)
    lane = start + tl.arange(0, LANES)[:, None] * VECTOR
    offset = lane + tl.arange(0, VECTOR)[None, :]
    inside = lane < n_inside
    x = tl.load(from_ptr + first + offset, mask=inside, other=0.0)
    column = (first - at).to(tl.int32) + offset
    slope = _slope(x, column, target, best, weight, g, smoothing, vocab, counts)
    tl.store(to_ptr + first + offset, slope.to(to_ptr.dtype.element_ty), mask=inside)


@triton.jit
def write_edges(  # type: ignore[no-untyped-def]
    from_ptr,
    to_ptr,
    at,
    target,
    best,
    weight,
    g,
    smoothing,
    vocab,
    counts,
    VECTOR: tl.constexpr,
):
    column, on_edge = edges(at, vocab, VECTOR)
    x = tl.load(from_ptr + at + column, mask=on_edge, other=0.0)
    slope = _slope(x, column, target, best, weight, g, smoothing, vocab, counts)
    tl.store(to_ptr + at + column, slope.to(to_ptr.dtype.element_ty), mask=on_edge)
