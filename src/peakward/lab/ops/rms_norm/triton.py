"""RMSNorm in one pass over memory, forward and backward, the residual's addition with it.

A row stays in registers between its sum of squares and its product, up to `MOST_COLUMNS` wide;
wider ones are read a second time from the L2. The weight's gradient is a sum over rows: backward, as
many programs as fit on the GPU share the rows out among them, each sums up its own in registers, and
`rows.triton.column_sums` adds these. Rows too wide for that are read once more, by columns.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.lab.ops.rows.layout import (
    RowSettings,
    ahead,
    alignment,
    as_rows,
    multiprocessors,
    power_of_two,
    tiles,
)
from peakward.lab.ops.rows.triton import column_sums

MOST_COLUMNS = 32768
MOST_COLUMNS_BACKWARD = 16384
"""Of rows whose sums for the weight's gradient stay in registers beside them."""
PIECE = 8192


@triton.jit(do_not_specialize=["n_rows"])
def _forward(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    s_ptr,
    r_ptr,
    n_rows,
    width,
    x_stride,
    residual_stride,
    eps,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    width *= ALIGN
    x_stride *= ALIGN
    residual_stride *= ALIGN
    column = tl.arange(0, COLUMNS)[None, :]
    n_tiles = tl.cdiv(n_rows, ROWS)
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n_rows) & (column < width)
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        if residual_ptr is not None:
            at = residual_ptr + row * residual_stride + column
            added = tl.load(at, mask=inside, other=0.0).to(tl.float32)
            s = (x + added).to(s_ptr.dtype.element_ty)
            tl.store(s_ptr + row * width + column, s, mask=inside)
            x = s.to(tl.float32)
        mean = tl.sum(x * x, 1, keep_dims=True) / width
        r = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
        tl.store(r_ptr + row, r, mask=row < n_rows)
        y = x * r
        if weight_ptr is not None:
            y *= tl.load(weight_ptr + column, mask=column < width).to(tl.float32)
        tl.store(y_ptr + row * width + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _forward_in_pieces(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    s_ptr,
    r_ptr,
    n_rows,
    width,
    x_stride,
    residual_stride,
    eps,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    width *= ALIGN
    x_stride *= ALIGN
    residual_stride *= ALIGN
    column = tl.arange(0, COLUMNS)
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0)):
        wide_row = tl.cast(row, tl.int64)
        x_row = x_ptr + wide_row * x_stride
        out_row = wide_row * width
        squares = tl.zeros((COLUMNS,), tl.float32)
        for start in tl.range(0, width, COLUMNS, num_stages=STAGES):
            at = start + column
            inside = at < width
            x = tl.load(x_row + at, mask=inside, other=0.0, eviction_policy="evict_last")
            x = x.to(tl.float32)
            if residual_ptr is not None:
                residual_row = residual_ptr + wide_row * residual_stride
                s = (x + tl.load(residual_row + at, mask=inside, other=0.0).to(tl.float32)).to(
                    s_ptr.dtype.element_ty
                )
                tl.store(s_ptr + out_row + at, s, mask=inside)
                x = s.to(tl.float32)
            squares += x * x
        mean = tl.sum(squares, 0) / width
        r = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
        tl.store(r_ptr + wide_row, r)
        for start in tl.range(0, width, COLUMNS, num_stages=STAGES):
            at = start + column
            inside = at < width
            if residual_ptr is not None:
                y = tl.load(s_ptr + out_row + at, mask=inside).to(tl.float32) * r
            else:
                x = tl.load(x_row + at, mask=inside, eviction_policy="evict_first")
                y = x.to(tl.float32) * r
            if weight_ptr is not None:
                y *= tl.load(weight_ptr + at, mask=inside).to(tl.float32)
            tl.store(y_ptr + out_row + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _backward(  # type: ignore[no-untyped-def]
    g_ptr,
    s_gradient_ptr,
    x_ptr,
    weight_ptr,
    r_ptr,
    out_ptr,
    partial_ptr,
    n_rows,
    width,
    g_stride,
    s_gradient_stride,
    x_stride,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    width *= ALIGN
    g_stride *= ALIGN
    s_gradient_stride *= ALIGN
    x_stride *= ALIGN
    column = tl.arange(0, COLUMNS)[None, :]
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + column, mask=column < width, other=0.0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    n_tiles = tl.cdiv(n_rows, ROWS)
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n_rows) & (column < width)
        g = tl.load(g_ptr + row * g_stride + column, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(r_ptr + row, mask=row < n_rows, other=0.0)
        x *= r
        if partial_ptr is not None:
            total += g * x
        if weight_ptr is not None:
            g *= weight.to(tl.float32)
        out = r * (g - x * (tl.sum(g * x, 1, keep_dims=True) / width))
        if s_gradient_ptr is not None:
            at = s_gradient_ptr + row * s_gradient_stride + column
            out += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=inside)
    if partial_ptr is not None:
        at = tl.program_id(0) * width + tl.arange(0, COLUMNS)
        tl.store(partial_ptr + at, tl.sum(total, 0), mask=tl.arange(0, COLUMNS) < width)


@triton.jit(do_not_specialize=["n_rows"])
def _backward_in_pieces(  # type: ignore[no-untyped-def]
    g_ptr,
    s_gradient_ptr,
    x_ptr,
    weight_ptr,
    r_ptr,
    out_ptr,
    n_rows,
    width,
    g_stride,
    s_gradient_stride,
    x_stride,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    width *= ALIGN
    g_stride *= ALIGN
    s_gradient_stride *= ALIGN
    x_stride *= ALIGN
    column = tl.arange(0, COLUMNS)
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0)):
        wide_row = tl.cast(row, tl.int64)
        g_row, x_row = g_ptr + wide_row * g_stride, x_ptr + wide_row * x_stride
        r = tl.load(r_ptr + wide_row)
        sums = tl.zeros((COLUMNS,), tl.float32)
        for start in tl.range(0, width, COLUMNS, num_stages=STAGES):
            at = start + column
            inside = at < width
            g = tl.load(g_row + at, mask=inside, other=0.0, eviction_policy="evict_last")
            x = tl.load(x_row + at, mask=inside, other=0.0, eviction_policy="evict_last")
            product = g.to(tl.float32) * (x.to(tl.float32) * r)
            if weight_ptr is not None:
                product *= tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
            sums += product
        mean = tl.sum(sums, 0) / width
        for start in tl.range(0, width, COLUMNS, num_stages=STAGES):
            at = start + column
            inside = at < width
            g = tl.load(g_row + at, mask=inside).to(tl.float32)
            x = tl.load(x_row + at, mask=inside).to(tl.float32) * r
            if weight_ptr is not None:
                g *= tl.load(weight_ptr + at, mask=inside).to(tl.float32)
            out = r * (g - x * mean)
            if s_gradient_ptr is not None:
                s_gradient_row = s_gradient_ptr + wide_row * s_gradient_stride
                out += tl.load(s_gradient_row + at, mask=inside).to(tl.float32)
            at_out = out_ptr + wide_row * width + at
            tl.store(at_out, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _weight_gradient(  # type: ignore[no-untyped-def]
    g_ptr,
    x_ptr,
    r_ptr,
    partial_ptr,
    n_rows,
    width,
    g_stride,
    x_stride,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    width *= ALIGN
    g_stride *= ALIGN
    x_stride *= ALIGN
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    n_tiles = tl.cdiv(n_rows, ROWS)
    for tile in tl.range(tl.program_id(1), n_tiles, tl.num_programs(1), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n_rows) & (column < width)
        g = tl.load(g_ptr + row * g_stride + column, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        total += g * (x * tl.load(r_ptr + row, mask=row < n_rows, other=0.0))
    out = tl.sum(total, 0, keep_dims=True)
    tl.store(partial_ptr + tl.program_id(1) * width + column, out, mask=column < width)


class Normalised(NamedTuple):
    y: Tensor
    s: Tensor | None
    """x + residual, where there is a residual."""
    r: Tensor
    """(rows,) of fp32."""


def settings_for(width: int, itemsize: int) -> RowSettings:
    """Forward: one program a tile, whose occupancy hides what a row waits for."""
    most = MOST_COLUMNS // (2 if itemsize == 4 else 1)
    if width <= most:
        return tiles(width, itemsize=itemsize, most_columns=most)
    return RowSettings(rows=1, columns=PIECE, warps=32)


def backward_settings_for(
    width: int, itemsize: int, device: torch.device, inputs: int = 2
) -> RowSettings:
    columns, programs = power_of_two(width), multiprocessors(device)
    most = MOST_COLUMNS_BACKWARD // (2 if itemsize == 4 else 1)
    if columns > most:
        return RowSettings(rows=1, columns=most // 2, warps=8, programs=programs, stages=3)
    if columns > most // 2:
        # Neither registers nor shared memory hold a second row beside the sums.
        return RowSettings(rows=1, columns=columns, warps=8, programs=programs)
    return ahead(columns, itemsize=itemsize, inputs=inputs, programs=programs)


def rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    settings: RowSettings | None = None,
) -> Normalised:
    """As `reference.rms_norm` and `add_rms_norm`, in fp32 arithmetic.

    Args:
        x: (…, width) in fp32, fp16 or bf16, not empty.
        residual: of x's shape and type.
        weight: (width,), contiguous.
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s = None if residual is None else torch.empty_like(y)
    x = as_rows(x)
    added = x if residual is None else as_rows(residual)
    n_rows, width = x.shape
    r = torch.empty(n_rows, dtype=torch.float32, device=x.device)
    chosen = settings or settings_for(width, x.element_size())
    strides = (x.stride(0), added.stride(0))
    align = alignment(width, *strides)
    tensors = (x, None if residual is None else added, weight, y, s, r)
    shared = (*tensors, n_rows, width // align, *(each // align for each in strides), eps, align)
    if chosen.columns >= width:
        _forward[chosen.grid(n_rows)](
            *shared, chosen.rows, chosen.columns, chosen.stages, num_warps=chosen.warps
        )
    else:
        _forward_in_pieces[chosen.grid(n_rows)](
            *shared, chosen.columns, chosen.stages, num_warps=chosen.warps
        )
    return Normalised(y, s, r)


def rms_norm_backward(
    gradient: Tensor,
    s_gradient: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    r: Tensor,
    settings: RowSettings | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `reference.rms_norm_backward`, in fp32 arithmetic; the weight's gradient in its type.

    Args:
        gradient: of x's shape, as is s_gradient, which is added to x's gradient.
        x: what was normalised, not empty.
        r: what `rms_norm` gave.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    g, x = as_rows(gradient), as_rows(x)
    added = g if s_gradient is None else as_rows(s_gradient)
    n_rows, width = x.shape
    itemsize = max(g.element_size(), x.element_size())
    inputs = 2 + (s_gradient is not None)
    chosen = settings or backward_settings_for(width, itemsize, x.device, inputs)
    strides = (g.stride(0), added.stride(0), x.stride(0))
    align = alignment(width, *strides)
    tensors = (g, None if s_gradient is None else added, x, weight, r, out)
    extents = (n_rows, width // align, *(each // align for each in strides), align)
    (n_programs,) = chosen.grid(n_rows)
    if chosen.columns < width:
        _backward_in_pieces[(n_programs,)](
            *tensors, *extents, chosen.columns, chosen.stages, num_warps=chosen.warps
        )
        return out, None if weight is None else weight_gradient(g, x, r, weight.dtype)
    partial = None if weight is None else r.new_empty(n_programs, width)
    _backward[(n_programs,)](
        *tensors,
        partial,
        *extents,
        chosen.rows,
        chosen.columns,
        chosen.stages,
        num_warps=chosen.warps,
    )
    if partial is None or weight is None:
        return out, None
    return out, column_sums(partial, weight.dtype)


def weight_gradient(g: Tensor, x: Tensor, r: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of g·x·r over the rows of g and x, (rows, width) both, by columns: any width."""
    n_rows, width = x.shape
    strides = (g.stride(0), x.stride(0))
    align = alignment(width, *strides)
    rows, columns = 8, 512
    n_blocks = triton.cdiv(width, columns)
    n_parts = min(triton.cdiv(n_rows, rows), triton.cdiv(4 * multiprocessors(x.device), n_blocks))
    partial = r.new_empty(n_parts, width)
    _weight_gradient[(n_blocks, n_parts)](
        g,
        x,
        r,
        partial,
        n_rows,
        width // align,
        *(each // align for each in strides),
        align,
        rows,
        columns,
        2,
        num_warps=4,
    )
    return column_sums(partial, dtype)
