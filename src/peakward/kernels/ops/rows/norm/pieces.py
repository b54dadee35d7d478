"""Gradients of normalised rows of any width, a piece of a row at a time: x's by a second reading of the row
from the L2, the weight's and bias's by columns in another pass over memory."""

import triton
import triton.language as tl

from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.layout import RowSettings, multiprocessors
from peakward.kernels.ops.rows.norm.problem import Partials, Problem


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


def in_pieces(problem: Problem, settings: RowSettings) -> Partials:
    """Fills `problem.out`."""
    n_rows = len(problem.x)
    launch(
        _row_norm_bwd_in_pieces,
        settings.grid(n_rows),
        *problem.tensors,
        n_rows,
        *problem.extents,
        settings.columns,
        settings.stages,
        num_warps=settings.warps,
    )
    if problem.weight is None and problem.bias is None:
        return Partials(None, None)
    return _by_columns(problem)


def _by_columns(problem: Problem) -> Partials:
    n_rows, width = problem.x.shape
    rows, columns = 8, 512
    n_blocks = triton.cdiv(width, columns)
    n_programs = 4 * multiprocessors(problem.x.device)
    n_parts = min(triton.cdiv(n_rows, rows), triton.cdiv(n_programs, n_blocks))
    partials = problem.partials(n_parts)
    of_width, of_g, _, of_x, align = problem.extents
    launch(
        _row_norm_bwd_parameters,
        (n_blocks, n_parts),
        problem.g,
        problem.x,
        problem.mean,
        problem.r,
        *partials,
        n_rows,
        of_width,
        of_g,
        of_x,
        align,
        rows,
        columns,
        2,
        num_warps=4 if problem.bias is None else 8,
    )
    return partials
