"""Rows to their softmax."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.rows.held import added, columns_of, largest
from peakward.kernels.ops.rows.layout import RowSettings, as_rows
from peakward.kernels.ops.rows.vectors import edges, packed, whole_vectors
from peakward.kernels.ops.softmax.triton.launch import over_rows, vector_of
from peakward.kernels.ops.softmax.triton.settings import settings_of


@triton.jit(do_not_specialize=["n_rows"])
def _forward_tiles(  # type: ignore[no-untyped-def]
    x_ptr,
    y_ptr,
    width,
    x_stride,
    ALIGN: tl.constexpr,
    n_rows,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    width *= ALIGN
    x_stride *= ALIGN
    column = tl.arange(0, COLUMNS)[None, :]
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    inside = (row < n_rows) & (column < width)
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=-float("inf"))
    x = x.to(tl.float32)
    e = tl.exp(x - tl.max(x, 1, keep_dims=True))
    y = e * tl.div_rn(1.0, tl.sum(e, 1, keep_dims=True))
    tl.store(y_ptr + row * width + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _forward_rows(  # type: ignore[no-untyped-def]
    x_ptr,
    y_ptr,
    width,
    x_stride,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    MORE: tl.constexpr,
    VECTOR: tl.constexpr,
):
    width *= ALIGN
    x_stride *= ALIGN
    TILES: tl.constexpr = 2 if MORE else 1
    row = tl.program_id(0).to(tl.int64)
    x_row, y_row = row * x_stride, row * width
    first, n_inside = whole_vectors(x_row, width, VECTOR)
    xs = ()
    tops = ()
    for tile in tl.static_range(TILES):
        column = columns_of(tile, COLUMNS, MORE)
        x = tl.load(x_ptr + first + column, mask=column < n_inside, other=-float("inf"))
        tops += (x.to(tl.float32),)  # type: ignore[assignment]
        xs += (x,)  # type: ignore[assignment]
    m = tl.max(largest(tops), 0)
    if VECTOR > 1:
        edge, on_edge = edges(x_row, width, VECTOR)
        x_edge = tl.load(x_ptr + x_row + edge, mask=on_edge, other=-float("inf"))
        m = tl.maximum(m, tl.max(x_edge.to(tl.float32), 0))
    es = ()
    held = ()
    for tile in tl.static_range(TILES):
        x = packed(xs[tile])
        es += (tl.exp(x.to(tl.float32) - m),)  # type: ignore[assignment]
        held += (x,)  # type: ignore[assignment]
    total = tl.sum(added(es), 0)
    if VECTOR > 1:
        e_edge = tl.exp(x_edge.to(tl.float32) - m)
        total += tl.sum(e_edge, 0)
    scale = tl.div_rn(1.0, total)
    first, _ = whole_vectors(y_row, width, VECTOR)
    for tile in tl.static_range(TILES):
        column = columns_of(tile, COLUMNS, MORE)
        y = tl.exp(packed(held[tile]).to(tl.float32) - m) * scale
        y = y.to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + first + column, y, mask=column < n_inside)
    if VECTOR > 1:
        y_edge = (e_edge * scale).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + y_row + edge, y_edge, mask=on_edge)


@triton.jit
def _forward_in_pieces(  # type: ignore[no-untyped-def]
    x_ptr,
    y_ptr,
    width,
    x_stride,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    width *= ALIGN
    x_stride *= ALIGN
    column = tl.arange(0, COLUMNS)
    row = tl.program_id(0).to(tl.int64)
    x_row, y_row = row * x_stride, row * width
    first, n_inside = whole_vectors(x_row, width, VECTOR)
    largest = tl.full((COLUMNS,), -float("inf"), tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in tl.range(0, n_inside, COLUMNS):
        x = tl.load(
            x_ptr + first + start + column,
            mask=start + column < n_inside,
            other=-float("inf"),
            eviction_policy="evict_last",
        ).to(tl.float32)
        larger = tl.maximum(largest, x)
        # A lane that has met nothing but -inf stays at 0: -inf - -inf would be NaN.
        base = tl.where(larger == -float("inf"), 0.0, larger)
        total = total * tl.exp(largest - base) + tl.exp(x - base)
        largest = larger
    m = tl.max(largest, 0)
    if VECTOR > 1:
        edge, on_edge = edges(x_row, width, VECTOR)
        x_edge = tl.load(x_ptr + x_row + edge, mask=on_edge, other=-float("inf")).to(tl.float32)
        m = tl.maximum(m, tl.max(x_edge, 0))
    base = tl.where(m == -float("inf"), 0.0, m)
    sums = tl.sum(total * tl.exp(largest - base), 0)
    if VECTOR > 1:
        sums += tl.sum(tl.exp(x_edge - base), 0)
    scale = tl.div_rn(1.0, sums)
    to, _ = whole_vectors(y_row, width, VECTOR)
    last = (n_inside - 1) // COLUMNS * COLUMNS
    for back in tl.range(0, n_inside, COLUMNS):
        start = last - back
        inside = start + column < n_inside
        x = tl.load(x_ptr + first + start + column, mask=inside, eviction_policy="evict_first")
        y = tl.exp(x.to(tl.float32) - m) * scale
        tl.store(y_ptr + to + start + column, y.to(y_ptr.dtype.element_ty), mask=inside)
    if VECTOR > 1:
        y_edge = (tl.exp(x_edge - m) * scale).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + y_row + edge, y_edge, mask=on_edge)


def softmax(x: Tensor, dtype: torch.dtype, settings: RowSettings | None = None) -> Tensor:
    """As `reference.softmax`, in fp32 arithmetic; x (…, width) in fp32, fp16 or bf16."""
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel() == 0:
        return y
    rows = as_rows(x)
    n_vector = vector_of(rows, out=y)
    chosen = settings or settings_of(
        "softmax", (rows,), y, n_vector, lambda each: (softmax(rows, dtype, each),)
    )
    over_rows((_forward_tiles, _forward_rows, _forward_in_pieces), (rows,), y, chosen, n_vector)
    return y
