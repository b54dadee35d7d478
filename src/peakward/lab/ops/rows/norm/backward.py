"""Gradients of normalised rows: RMSNorm, and with a mean LayerNorm.

The gradients of weight and bias are sums over rows, in two stages: programs share the rows out among
them, each sums up its own in registers, and `rows.triton.column_sums` adds these. Rows too wide for that
are read once more, by columns.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.lab.ops.rows.layout import (
    ACCESS_BYTES,
    WARP,
    RowSettings,
    alignment,
    as_rows,
    multiprocessors,
)
from peakward.lab.ops.rows.norm.settings import HELD_COLUMNS
from peakward.lab.ops.rows.norm.wide import row_norm_bwd_wide
from peakward.lab.ops.rows.triton import column_sums
from peakward.lab.ops.rows.vectors import packed


class Gradients(NamedTuple):
    x: Tensor
    weight: Tensor | None
    bias: Tensor | None


@triton.jit(do_not_specialize=["n_rows"])
def _row_norm_bwd(  # type: ignore[no-untyped-def]
    g_ptr,
    s_gradient_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    r_ptr,
    out_ptr,
    weight_partial_ptr,
    bias_partial_ptr,
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
    weight_total = tl.zeros((COLUMNS,), tl.float32)
    bias_total = tl.zeros((COLUMNS,), tl.float32)
    n_tiles = tl.cdiv(n_rows, ROWS)
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n_rows) & (column < width)
        loaded_g = tl.load(g_ptr + row * g_stride + column, mask=inside, other=0.0)
        loaded_x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
        r = tl.load(r_ptr + row, mask=row < n_rows, other=0.0)
        mean, shift = 0.0, 0.0
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + row, mask=row < n_rows, other=0.0)
        g, x = loaded_g.to(tl.float32), (loaded_x.to(tl.float32) - mean) * r
        if weight_partial_ptr is not None:
            weight_total += tl.sum(g * x, 0)
        if bias_partial_ptr is not None:
            bias_total += tl.sum(g, 0)
        if weight_ptr is not None:
            g *= packed(weight).to(tl.float32)
        if mean_ptr is not None:
            # In one reduction, for which the warps wait once.
            shift, along_x = tl.split(tl.sum(tl.join(g, g * x), 1))
            shift, along_x = shift[:, None] / width, along_x[:, None] / width
        else:
            along_x = tl.sum(g * x, 1, keep_dims=True) / width
        g, x = packed(loaded_g).to(tl.float32), (packed(loaded_x).to(tl.float32) - mean) * r
        if weight_ptr is not None:
            g *= packed(weight).to(tl.float32)
        out = r * (g - shift - x * along_x)
        if s_gradient_ptr is not None:
            at = s_gradient_ptr + row * s_gradient_stride + column
            out += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=inside)
    at = tl.program_id(0) * width + tl.arange(0, COLUMNS)
    inside = tl.arange(0, COLUMNS) < width
    if weight_partial_ptr is not None:
        tl.store(weight_partial_ptr + at, weight_total, mask=inside)
    if bias_partial_ptr is not None:
        tl.store(bias_partial_ptr + at, bias_total, mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _row_norm_bwd_in_pieces(  # type: ignore[no-untyped-def]
    g_ptr,
    s_gradient_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
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
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + wide_row)
        sums = tl.zeros((COLUMNS,), tl.float32)
        sums_along_x = tl.zeros((COLUMNS,), tl.float32)
        for start in tl.range(0, width, COLUMNS, num_stages=STAGES):
            at = start + column
            inside = at < width
            g = tl.load(g_row + at, mask=inside, other=0.0, eviction_policy="evict_last")
            x = tl.load(x_row + at, mask=inside, other=0.0, eviction_policy="evict_last")
            g = g.to(tl.float32)
            if weight_ptr is not None:
                g *= tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
            if mean_ptr is not None:
                sums += g
                sums_along_x += tl.where(inside, g * ((x.to(tl.float32) - mean) * r), 0.0)
            else:
                sums_along_x += g * (x.to(tl.float32) * r)
        if mean_ptr is not None:
            shift = tl.sum(sums, 0) / width
        along_x = tl.sum(sums_along_x, 0) / width
        for start in tl.range(0, width, COLUMNS, num_stages=STAGES):
            at = start + column
            inside = at < width
            g = tl.load(g_row + at, mask=inside).to(tl.float32)
            x = tl.load(x_row + at, mask=inside).to(tl.float32)
            if mean_ptr is not None:
                x -= mean
            x *= r
            if weight_ptr is not None:
                g *= tl.load(weight_ptr + at, mask=inside).to(tl.float32)
            if mean_ptr is not None:
                g -= shift
            out = r * (g - x * along_x)
            if s_gradient_ptr is not None:
                s_gradient_row = s_gradient_ptr + wide_row * s_gradient_stride
                out += tl.load(s_gradient_row + at, mask=inside).to(tl.float32)
            at_out = out_ptr + wide_row * width + at
            tl.store(at_out, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _row_norm_bwd_parameters(  # type: ignore[no-untyped-def]
    g_ptr,
    x_ptr,
    mean_ptr,
    r_ptr,
    weight_partial_ptr,
    bias_partial_ptr,
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
    weight_total = tl.zeros((ROWS, COLUMNS), tl.float32)
    bias_total = tl.zeros((ROWS, COLUMNS), tl.float32)
    n_tiles = tl.cdiv(n_rows, ROWS)
    for tile in tl.range(tl.program_id(1), n_tiles, tl.num_programs(1), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n_rows) & (column < width)
        g = tl.load(g_ptr + row * g_stride + column, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        if mean_ptr is not None:
            x -= tl.load(mean_ptr + row, mask=row < n_rows, other=0.0)
        weight_total += g * (x * tl.load(r_ptr + row, mask=row < n_rows, other=0.0))
        if bias_partial_ptr is not None:
            bias_total += g
    at = tl.program_id(1) * width + column
    if weight_partial_ptr is not None:
        out = tl.sum(weight_total, 0, keep_dims=True)
        tl.store(weight_partial_ptr + at, out, mask=column < width)
    if bias_partial_ptr is not None:
        out = tl.sum(bias_total, 0, keep_dims=True)
        tl.store(bias_partial_ptr + at, out, mask=column < width)


def gradients(
    gradient: Tensor,
    s_gradient: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    r: Tensor,
    settings: RowSettings,
) -> Gradients:
    """In fp32 arithmetic, each gradient in its tensor's type.

    Args:
        gradient: of x's shape, as is s_gradient, which is added to x's gradient.
        x: what was normalised, not empty.
        bias: says whether it has a gradient, and of which type.
        mean, r: what `normalise` gave.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    g, x = as_rows(gradient), as_rows(x)
    added = g if s_gradient is None else as_rows(s_gradient)
    n_rows, width = x.shape
    strides = (g.stride(0), added.stride(0), x.stride(0))
    align = alignment(width, *strides)
    tensors = (g, None if s_gradient is None else added, x, weight, mean, r, out)
    extents = (n_rows, width // align, *(each // align for each in strides), align)
    (n_programs,) = settings.grid(n_rows)
    if settings.columns < width:
        _row_norm_bwd_in_pieces[(n_programs,)](
            *tensors, *extents, settings.columns, settings.stages, num_warps=settings.warps
        )
        return Gradients(out, *parameter_gradients(g, x, weight, bias, mean, r))
    partial = [None if each is None else r.new_empty(n_programs, width) for each in (weight, bias)]
    kernel = _row_norm_bwd
    cut: tuple[int, ...] = (settings.rows, settings.columns)
    if settings.columns > HELD_COLUMNS:
        lanes, vector = WARP * settings.warps, ACCESS_BYTES // x.element_size()
        kernel, cut = row_norm_bwd_wide, (triton.cdiv(width, lanes * vector), lanes, vector)
    kernel[(n_programs,)](
        *tensors, *partial, *extents, *cut, settings.stages, num_warps=settings.warps
    )
    return Gradients(out, *_summed(partial, weight, bias))


def parameter_gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    r: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """The sums of g·(x - mean)·r and of g over the rows of g and x, (rows, width) of any width."""
    if weight is None and bias is None:
        return None, None
    n_rows, width = x.shape
    strides = (g.stride(0), x.stride(0))
    align = alignment(width, *strides)
    rows, columns = 8, 512
    n_blocks = triton.cdiv(width, columns)
    n_parts = min(triton.cdiv(n_rows, rows), triton.cdiv(4 * multiprocessors(x.device), n_blocks))
    partial = [None if each is None else r.new_empty(n_parts, width) for each in (weight, bias)]
    _row_norm_bwd_parameters[(n_blocks, n_parts)](
        g,
        x,
        mean,
        r,
        *partial,
        n_rows,
        width // align,
        *(each // align for each in strides),
        align,
        rows,
        columns,
        2,
        num_warps=4 if bias is None else 8,
    )
    return _summed(partial, weight, bias)


def _summed(
    partial: list[Tensor | None], weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Each parameter's partial sums added, in its type."""
    parts = [
        (sums, each.dtype)
        for sums, each in zip(partial, (weight, bias), strict=True)
        if sums is not None and each is not None
    ]
    found = iter(column_sums(*parts) if parts else ())
    own, own_bias = (None if each is None else next(found) for each in (weight, bias))
    return own, own_bias
