"""Softmax in one pass over memory.

Short rows share a tile. Those of up to `MOST_COLUMNS` stay in registers between the maximum, the sum and
the quotient. Wider ones are read twice, in pieces: once for both maximum and sum (Milakov & Gimelshein
2018, "Online normalizer calculation for softmax"), kept a lane apart so that no piece waits for another's
reduction, and once for the quotient, from the last piece back, of which the caches still have most.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.lab.ops.rows.layout import RowSettings, alignment, as_rows, tiles, vector
from peakward.lab.ops.rows.vectors import edges, packed, whole_vectors

MOST_COLUMNS = 65536
"""Of a row in the registers of 32 warps, of 16 bits; half as many of 32, or of two inputs."""
BOTH_BITS: tl.constexpr = tl.constexpr(16 * 32768)
"""Of a row of each of two inputs in registers; of a wider one the gradient is read again, from the L1."""
PIECE = 8192


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
    VECTOR: tl.constexpr,
):
    width *= ALIGN
    x_stride *= ALIGN
    column = tl.arange(0, COLUMNS)
    row = tl.program_id(0).to(tl.int64)
    x_row, y_row = row * x_stride, row * width
    first, n_inside = whole_vectors(x_row, width, VECTOR)
    x = tl.load(x_ptr + first + column, mask=column < n_inside, other=-float("inf"))
    m = tl.max(x.to(tl.float32), 0)
    if VECTOR > 1:
        edge, on_edge = edges(x_row, width, VECTOR)
        x_edge = tl.load(x_ptr + x_row + edge, mask=on_edge, other=-float("inf"))
        m = tl.maximum(m, tl.max(x_edge.to(tl.float32), 0))
    x = packed(x)
    total = tl.sum(tl.exp(x.to(tl.float32) - m), 0)
    if VECTOR > 1:
        e_edge = tl.exp(x_edge.to(tl.float32) - m)
        total += tl.sum(e_edge, 0)
    scale = tl.div_rn(1.0, total)
    y = tl.exp(packed(x).to(tl.float32) - m) * scale
    first, _ = whole_vectors(y_row, width, VECTOR)
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
    inside = column < n_inside
    wide: tl.constexpr = COLUMNS * g_ptr.dtype.element_ty.primitive_bitwidth > BOTH_BITS
    y = tl.load(y_ptr + y_first + column, mask=inside, other=0.0)
    if wide:
        # By their hints the compiler tells this load from the one below, and keeps both.
        g = tl.load(g_ptr + g_first + column, mask=inside, other=0.0, eviction_policy="evict_last")
    else:
        g = tl.load(g_ptr + g_first + column, mask=inside, other=0.0)
    shift = tl.sum(g.to(tl.float32) * y.to(tl.float32), 0)
    if VECTOR > 1:
        edge, on_edge = edges(g_row, width, VECTOR)
        g_edge = tl.load(g_ptr + g_row + edge, mask=on_edge, other=0.0).to(tl.float32)
        y_edge = tl.load(y_ptr + y_row + edge, mask=on_edge, other=0.0).to(tl.float32)
        shift += tl.sum(g_edge * y_edge, 0)
    g = packed(g)
    if wide:
        g = tl.load(g_ptr + g_first + column, mask=inside, eviction_policy="evict_first")
    out = packed(y).to(tl.float32) * (g.to(tl.float32) - shift)
    first, _ = whole_vectors(out_row, width, VECTOR)
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


def settings_for(
    width: int, itemsize: int, inputs: int = 1, *, has_edges: bool = False
) -> RowSettings:
    """Forward with one input, backward with two."""
    most = MOST_COLUMNS // inputs // (2 if itemsize == 4 else 1)
    if most < width <= most * inputs:
        # One input is held and the other read again, from the L1: H100, 2,048 rows of 65,536, 290 µs
        # for 309 in pieces, 4,096 of 50,257 469 for 489.
        return RowSettings(rows=1, columns=most * inputs, warps=32)
    if width > most:
        return RowSettings(rows=1, columns=PIECE * inputs, warps=16 * inputs)
    chosen = tiles(width, itemsize=itemsize, inputs=inputs, most_columns=most)
    if has_edges and chosen.rows > 1 and width > 128:
        # Of rows that share a tile nothing is known to be a whole vector.
        warps = max(1, chosen.warps // chosen.rows)
        return RowSettings(rows=1, columns=chosen.columns, warps=warps)
    return chosen


def softmax(x: Tensor, dtype: torch.dtype, settings: RowSettings | None = None) -> Tensor:
    """As `reference.softmax`, in fp32 arithmetic; x (…, width) in fp32, fp16 or bf16."""
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel() == 0:
        return y
    rows = as_rows(x)
    n_vector = _vector(rows, out=y)
    chosen = settings or settings_for(rows.shape[1], x.element_size(), has_edges=n_vector > 1)
    _launch((_forward_tiles, _forward_rows, _forward_in_pieces), (rows,), y, chosen, n_vector)
    return y


def softmax_backward(
    gradient: Tensor, y: Tensor, dtype: torch.dtype, settings: RowSettings | None = None
) -> Tensor:
    """As `reference.softmax_backward`, in fp32 arithmetic; gradient and y of one shape."""
    out = torch.empty(y.shape, dtype=dtype, device=y.device)
    if y.numel() == 0:
        return out
    g, y = as_rows(gradient), as_rows(y)
    itemsize = max(g.element_size(), y.element_size())
    n_vector = _vector(g, y, out=out)
    chosen = settings or settings_for(y.shape[1], itemsize, inputs=2, has_edges=n_vector > 1)
    _launch((_backward_tiles, _backward_rows, _backward_in_pieces), (g, y), out, chosen, n_vector)
    return out


def _vector(*inputs: Tensor, out: Tensor) -> int:
    """As `layout.vector`; out is contiguous."""
    itemsize = min(each.element_size() for each in (*inputs, out))
    width = inputs[0].shape[1]
    return vector(itemsize, width, *(each.stride(0) for each in inputs), width)


def _launch(
    kernels: Sequence[triton.JITFunction],
    inputs: tuple[Tensor, ...],
    out: Tensor,
    settings: RowSettings,
    n_vector: int,
) -> None:
    """Of the kernels of tiles, of rows and of pieces of rows the one that the settings are for."""
    n_rows, width = inputs[0].shape
    strides = [each.stride(0) for each in inputs]
    align = alignment(width, *strides)
    extents = (width // align, *(each // align for each in strides), align)
    of_tiles, of_rows, of_pieces = kernels
    if settings.rows > 1:
        kernel = of_tiles
        cut: tuple[int, ...] = (n_rows, settings.rows, settings.columns)
    else:
        kernel = of_rows if settings.columns >= width else of_pieces
        cut = (settings.columns, n_vector)
    grid = (triton.cdiv(n_rows, settings.rows),)
    kernel[grid](*inputs, out, *extents, *cut, num_warps=settings.warps)
