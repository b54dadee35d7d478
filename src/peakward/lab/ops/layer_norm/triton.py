"""LayerNorm in one pass over memory, forward and backward, the residual's addition with it.

Laid out as RMSNorm is (`rms_norm.triton`): rows stay in registers between their mean, their variance
about it and the result; wider ones are read again from the L2, first for mean and variance together,
kept a lane apart (Chan et al. 1983, equations 2.1), then for the result. The gradients of weight and
bias are sums over rows in two stages.
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
MOST_COLUMNS_BACKWARD = 8192
"""Of rows whose sums for the weight's gradient stay in registers beside them."""
PIECE = 8192


@triton.jit(do_not_specialize=["n_rows"])
def _forward(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    s_ptr,
    mean_ptr,
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
        mean = tl.sum(x, 1, keep_dims=True) / width
        x = tl.where(column < width, x - mean, 0.0)
        r = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(x * x, 1, keep_dims=True) / width + eps))
        tl.store(mean_ptr + row, mean, mask=row < n_rows)
        tl.store(r_ptr + row, r, mask=row < n_rows)
        y = x * r
        # Only now, from the L1: held since before the row, they cost a third of the occupancy.
        if weight_ptr is not None:
            y *= tl.load(weight_ptr + column, mask=column < width).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + column, mask=column < width).to(tl.float32)
        tl.store(y_ptr + row * width + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _forward_in_pieces(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    s_ptr,
    mean_ptr,
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
        # Of each lane: how many, their mean, and the sum of their squared distances from it.
        count = tl.zeros((COLUMNS,), tl.float32)
        lane_mean = tl.zeros((COLUMNS,), tl.float32)
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
            count += tl.where(inside, 1.0, 0.0)
            distance = tl.where(inside, x - lane_mean, 0.0)
            lane_mean += distance / tl.maximum(count, 1.0)
            squares += tl.where(inside, distance * (x - lane_mean), 0.0)
        mean = tl.sum(count * lane_mean, 0) / width
        mean += tl.sum(count * (lane_mean - mean), 0) / width  # What the first sum's rounding lost.
        between = count * (lane_mean - mean) * (lane_mean - mean)
        r = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares + between, 0) / width + eps))
        tl.store(mean_ptr + wide_row, mean)
        tl.store(r_ptr + wide_row, r)
        for start in tl.range(0, width, COLUMNS, num_stages=STAGES):
            at = start + column
            inside = at < width
            if residual_ptr is not None:
                x = tl.load(s_ptr + out_row + at, mask=inside)
            else:
                x = tl.load(x_row + at, mask=inside, eviction_policy="evict_first")
            y = (x.to(tl.float32) - mean) * r
            if weight_ptr is not None:
                y *= tl.load(weight_ptr + at, mask=inside).to(tl.float32)
            if bias_ptr is not None:
                y += tl.load(bias_ptr + at, mask=inside).to(tl.float32)
            tl.store(y_ptr + out_row + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _backward(  # type: ignore[no-untyped-def]
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
    weight_total = tl.zeros((ROWS, COLUMNS), tl.float32)
    bias_total = tl.zeros((ROWS, COLUMNS), tl.float32)
    n_tiles = tl.cdiv(n_rows, ROWS)
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n_rows) & (column < width)
        g = tl.load(g_ptr + row * g_stride + column, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(r_ptr + row, mask=row < n_rows, other=0.0)
        mean = tl.load(mean_ptr + row, mask=row < n_rows, other=0.0)
        x = tl.where(column < width, (x - mean) * r, 0.0)
        if weight_partial_ptr is not None:
            weight_total += g * x
        if bias_partial_ptr is not None:
            bias_total += g
        if weight_ptr is not None:
            g *= weight.to(tl.float32)
        along_x = tl.sum(g * x, 1, keep_dims=True) / width
        out = r * (g - tl.sum(g, 1, keep_dims=True) / width - x * along_x)
        if s_gradient_ptr is not None:
            at = s_gradient_ptr + row * s_gradient_stride + column
            out += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=inside)
    at = tl.program_id(0) * width + tl.arange(0, COLUMNS)
    inside = tl.arange(0, COLUMNS) < width
    if weight_partial_ptr is not None:
        tl.store(weight_partial_ptr + at, tl.sum(weight_total, 0), mask=inside)
    if bias_partial_ptr is not None:
        tl.store(bias_partial_ptr + at, tl.sum(bias_total, 0), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _backward_in_pieces(  # type: ignore[no-untyped-def]
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
            sums += g
            sums_along_x += tl.where(inside, g * ((x.to(tl.float32) - mean) * r), 0.0)
        shift = tl.sum(sums, 0) / width
        along_x = tl.sum(sums_along_x, 0) / width
        for start in tl.range(0, width, COLUMNS, num_stages=STAGES):
            at = start + column
            inside = at < width
            g = tl.load(g_row + at, mask=inside).to(tl.float32)
            x = (tl.load(x_row + at, mask=inside).to(tl.float32) - mean) * r
            if weight_ptr is not None:
                g *= tl.load(weight_ptr + at, mask=inside).to(tl.float32)
            out = r * (g - shift - x * along_x)
            if s_gradient_ptr is not None:
                s_gradient_row = s_gradient_ptr + wide_row * s_gradient_stride
                out += tl.load(s_gradient_row + at, mask=inside).to(tl.float32)
            at_out = out_ptr + wide_row * width + at
            tl.store(at_out, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _parameter_gradients(  # type: ignore[no-untyped-def]
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
        mean = tl.load(mean_ptr + row, mask=row < n_rows, other=0.0)
        r = tl.load(r_ptr + row, mask=row < n_rows, other=0.0)
        weight_total += g * ((x - mean) * r)
        bias_total += g
    at = tl.program_id(1) * width + column
    if weight_partial_ptr is not None:
        out = tl.sum(weight_total, 0, keep_dims=True)
        tl.store(weight_partial_ptr + at, out, mask=column < width)
    if bias_partial_ptr is not None:
        out = tl.sum(bias_total, 0, keep_dims=True)
        tl.store(bias_partial_ptr + at, out, mask=column < width)


class Normalised(NamedTuple):
    y: Tensor
    s: Tensor | None
    """x + residual, where there is a residual."""
    mean: Tensor
    """(rows,) of fp32, as r is."""
    r: Tensor


class Gradients(NamedTuple):
    x: Tensor
    weight: Tensor | None
    bias: Tensor | None


def settings_for(width: int, itemsize: int, device: torch.device) -> RowSettings:
    """Forward: one program a tile, whose occupancy hides what a row waits for."""
    most = MOST_COLUMNS // (2 if itemsize == 4 else 1)
    if width > most:
        return RowSettings(
            rows=1, columns=PIECE, warps=32, programs=multiprocessors(device), stages=1
        )
    chosen = tiles(width, itemsize=itemsize, most_columns=most)
    if chosen.columns == most // 2:
        # Of one tile a program 242 µs, so 191 (H100, 8,192 × 16,384 of bf16).
        return chosen._replace(warps=8, programs=4 * multiprocessors(device), stages=2)
    return chosen


def backward_settings_for(
    width: int, itemsize: int, device: torch.device, inputs: int = 2
) -> RowSettings:
    columns, programs = power_of_two(width), multiprocessors(device)
    most = MOST_COLUMNS_BACKWARD // (2 if itemsize == 4 else 1)
    if columns > most:
        return RowSettings(rows=1, columns=most, warps=8, programs=programs, stages=3)
    return ahead(columns, itemsize=itemsize, inputs=inputs, programs=programs)


def layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    settings: RowSettings | None = None,
) -> Normalised:
    """As `reference.layer_norm` and `add_layer_norm`, in fp32 arithmetic.

    Args:
        x: (…, width) in fp32, fp16 or bf16, not empty.
        residual: of x's shape and type.
        weight, bias: (width,), contiguous.
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s = None if residual is None else torch.empty_like(y)
    x = as_rows(x)
    added = x if residual is None else as_rows(residual)
    n_rows, width = x.shape
    mean, r = (torch.empty(n_rows, dtype=torch.float32, device=x.device) for _ in range(2))
    chosen = settings or settings_for(width, x.element_size(), x.device)
    strides = (x.stride(0), added.stride(0))
    align = alignment(width, *strides)
    tensors = (x, None if residual is None else added, weight, bias, y, s, mean, r)
    shared = (*tensors, n_rows, width // align, *(each // align for each in strides), eps, align)
    if chosen.columns >= width:
        _forward[chosen.grid(n_rows)](
            *shared, chosen.rows, chosen.columns, chosen.stages, num_warps=chosen.warps
        )
    else:
        _forward_in_pieces[chosen.grid(n_rows)](
            *shared, chosen.columns, chosen.stages, num_warps=chosen.warps
        )
    return Normalised(y, s, mean, r)


def layer_norm_backward(
    gradient: Tensor,
    s_gradient: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    r: Tensor,
    settings: RowSettings | None = None,
) -> Gradients:
    """As `reference.layer_norm_backward`, in fp32 arithmetic, each gradient in its tensor's type.

    Args:
        gradient: of x's shape, as is s_gradient, which is added to x's gradient.
        x: what was normalised, not empty.
        bias: says whether it has a gradient, and of which type.
        mean, r: what `layer_norm` gave.
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
    tensors = (g, None if s_gradient is None else added, x, weight, mean, r, out)
    extents = (n_rows, width // align, *(each // align for each in strides), align)
    (n_programs,) = chosen.grid(n_rows)
    if chosen.columns < width:
        _backward_in_pieces[(n_programs,)](
            *tensors, *extents, chosen.columns, chosen.stages, num_warps=chosen.warps
        )
        return Gradients(out, *parameter_gradients(g, x, weight, bias, mean, r))
    partial = [None if each is None else r.new_empty(n_programs, width) for each in (weight, bias)]
    _backward[(n_programs,)](
        *tensors,
        *partial,
        *extents,
        chosen.rows,
        chosen.columns,
        chosen.stages,
        num_warps=chosen.warps,
    )
    return Gradients(out, *_summed(partial, weight, bias))


def parameter_gradients(
    g: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, r: Tensor
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
    _parameter_gradients[(n_blocks, n_parts)](
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
        num_warps=8,
    )
    return _summed(partial, weight, bias)


def _summed(
    partial: list[Tensor | None], weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Each parameter's partial sums added, in its type."""
    own, own_bias = (
        None if sums is None or each is None else column_sums(sums, each.dtype)
        for sums, each in zip(partial, (weight, bias), strict=True)
    )
    return own, own_bias
