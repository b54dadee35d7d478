"""The gradient of rows by that of their softmax."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.rows.held import added, columns_of
from peakward.kernels.ops.rows.layout import RowSettings, as_rows
from peakward.kernels.ops.rows.vectors import edges, packed, whole_vectors
from peakward.kernels.ops.softmax.triton.launch import over_rows, vector_of
from peakward.kernels.ops.softmax.triton.settings import settings_of

BOTH_BITS: tl.constexpr = tl.constexpr(16 * 32768)
"""The most bits of a row, in each of two inputs, that registers hold; the gradient of a wider row is read
again, from the L1."""


@triton.jit(do_not_specialize=["n_rows"])
def _backward_tiles(  # type: ignore[no-untyped-def]
    g_ptr,
    y_ptr,
    out_ptr,
    width,
    g_stride,
    y_stride,
    ALIGN: tl.constexpr,
    n_rows,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    width *= ALIGN
    g_stride *= ALIGN
    y_stride *= ALIGN
    column = tl.arange(0, COLUMNS)[None, :]
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    inside = (row < n_rows) & (column < width)
    g = tl.load(g_ptr + row * g_stride + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + row * y_stride + column, mask=inside, other=0.0).to(tl.float32)
    out = y * (g - tl.sum(g * y, 1, keep_dims=True))
    tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_rows(  # type: ignore[no-untyped-def]
    g_ptr,
    y_ptr,
    out_ptr,
    width,
    g_stride,
    y_stride,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    MORE: tl.constexpr,
    VECTOR: tl.constexpr,
):
    width *= ALIGN
    g_stride *= ALIGN
    y_stride *= ALIGN
    TILES: tl.constexpr = 2 if MORE else 1
    row = tl.program_id(0).to(tl.int64)
    g_row, y_row = row * g_stride, row * y_stride
    out_row = row * width
    g_first, n_inside = whole_vectors(g_row, width, VECTOR)
    y_first, _ = whole_vectors(y_row, width, VECTOR)
    wide: tl.constexpr = (COLUMNS + MORE) * g_ptr.dtype.element_ty.primitive_bitwidth > BOTH_BITS
    gs = ()
    ys = ()
    products = ()
    for tile in tl.static_range(TILES):
        column = columns_of(tile, COLUMNS, MORE)
        inside = column < n_inside
        y = tl.load(y_ptr + y_first + column, mask=inside, other=0.0)
        at = g_ptr + g_first + column
        if wide:
            # By their hints the compiler tells this load from the one below, and keeps both.
            g = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_last")
        else:
            g = tl.load(at, mask=inside, other=0.0)
        products += (g.to(tl.float32) * y.to(tl.float32),)  # type: ignore[assignment]
        gs += (g,)  # type: ignore[assignment]
        ys += (y,)  # type: ignore[assignment]
    shift = tl.sum(added(products), 0)
    if VECTOR > 1:
        edge, on_edge = edges(g_row, width, VECTOR)
        g_edge = tl.load(g_ptr + g_row + edge, mask=on_edge, other=0.0).to(tl.float32)
        y_edge = tl.load(y_ptr + y_row + edge, mask=on_edge, other=0.0).to(tl.float32)
        shift += tl.sum(g_edge * y_edge, 0)
    first, _ = whole_vectors(out_row, width, VECTOR)
    for tile in tl.static_range(TILES):
        column = columns_of(tile, COLUMNS, MORE)
        inside = column < n_inside
        g = packed(gs[tile])
        if wide:
            g = tl.load(g_ptr + g_first + column, mask=inside, eviction_policy="evict_first")
        out = packed(ys[tile]).to(tl.float32) * (g.to(tl.float32) - shift)
        tl.store(out_ptr + first + column, out.to(out_ptr.dtype.element_ty), mask=inside)
    if VECTOR > 1:
        out_edge = (y_edge * (g_edge - shift)).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + out_row + edge, out_edge, mask=on_edge)


@triton.jit
def _backward_in_pieces(  # type: ignore[no-untyped-def]
    g_ptr,
    y_ptr,
    out_ptr,
    width,
    g_stride,
    y_stride,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    width *= ALIGN
    g_stride *= ALIGN
    y_stride *= ALIGN
    column = tl.arange(0, COLUMNS)
    row = tl.program_id(0).to(tl.int64)
    g_row, y_row = row * g_stride, row * y_stride
    out_row = row * width
    g_first, n_inside = whole_vectors(g_row, width, VECTOR)
    y_first, _ = whole_vectors(y_row, width, VECTOR)
    sums = tl.zeros((COLUMNS,), tl.float32)
    for start in tl.range(0, n_inside, COLUMNS):
        at = start + column
        inside = at < n_inside
        g = tl.load(g_ptr + g_first + at, mask=inside, other=0.0, eviction_policy="evict_last")
        y = tl.load(y_ptr + y_first + at, mask=inside, other=0.0, eviction_policy="evict_last")
        sums += g.to(tl.float32) * y.to(tl.float32)
    shift = tl.sum(sums, 0)
    if VECTOR > 1:
        edge, on_edge = edges(g_row, width, VECTOR)
        g_edge = tl.load(g_ptr + g_row + edge, mask=on_edge, other=0.0).to(tl.float32)
        y_edge = tl.load(y_ptr + y_row + edge, mask=on_edge, other=0.0).to(tl.float32)
        shift += tl.sum(g_edge * y_edge, 0)
    to, _ = whole_vectors(out_row, width, VECTOR)
    last = (n_inside - 1) // COLUMNS * COLUMNS
    for back in tl.range(0, n_inside, COLUMNS):
        at = last - back + column
        inside = at < n_inside
        g = tl.load(g_ptr + g_first + at, mask=inside, eviction_policy="evict_first")
        y = tl.load(y_ptr + y_first + at, mask=inside, eviction_policy="evict_first")
        out = y.to(tl.float32) * (g.to(tl.float32) - shift)
        tl.store(out_ptr + to + at, out.to(out_ptr.dtype.element_ty), mask=inside)
    if VECTOR > 1:
        out_edge = (y_edge * (g_edge - shift)).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + out_row + edge, out_edge, mask=on_edge)


def softmax_backward(
    gradient: Tensor, y: Tensor, dtype: torch.dtype, settings: RowSettings | None = None
) -> Tensor:
    """As `reference.softmax_backward`, in fp32 arithmetic; gradient and y of one shape."""
    out = torch.empty(y.shape, dtype=dtype, device=y.device)
    if y.numel() == 0:
        return out
    g, y = as_rows(gradient), as_rows(y)
    n_vector = vector_of(g, y, out=out)
    chosen = settings or settings_of(
        "softmax backward",
        (g, y),
        out,
        n_vector,
        lambda each: (softmax_backward(g, y, dtype, each),),
    )
    over_rows((_backward_tiles, _backward_rows, _backward_in_pieces), (g, y), out, chosen, n_vector)
    return out
