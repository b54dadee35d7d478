"""Gradients of normalised rows that a program holds whole, with the sums for weight and bias beside them."""

import triton
import triton.language as tl

from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.layout import RowSettings
from peakward.kernels.ops.rows.norm.problem import Partials, Problem
from peakward.kernels.ops.rows.vectors import packed


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


def whole(problem: Problem, settings: RowSettings) -> Partials:
    """Fills `problem.out`."""
    n_rows = len(problem.x)
    (n_programs,) = settings.grid(n_rows)
    partials = problem.partials(n_programs)
    launch(
        _row_norm_bwd,
        (n_programs,),
        *problem.tensors,
        *partials,
        n_rows,
        *problem.extents,
        settings.rows,
        settings.columns,
        settings.stages,
        num_warps=settings.warps,
    )
    return partials
