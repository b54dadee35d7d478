"""Gradients of normalised rows that are spread over several programs, in one pass over memory.

A program has the sums of its columns for weight and bias; the words of a row are what its mean products are
made of.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_wait

from peakward.kernels.ops.dependent import dependent
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.layout import ACCESS_BYTES, WARP, power_of_two
from peakward.kernels.ops.rows.norm.problem import Partials, Problem
from peakward.kernels.ops.rows.norm.settings import SpreadSettings
from peakward.kernels.ops.rows.norm.spread import (
    LAG,
    LANES,
    awaited,
    bits_of,
    bring,
    tell,
    ticket_of,
    unset,
)


@gluon.jit(do_not_specialize=["n_rows", "n_groups"])
def row_norm_bwd_spread(  # type: ignore[no-untyped-def]
    g_ptr,
    s_gradient_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    r_ptr,
    out_ptr,
    weight_partial_ptr,
    bias_partial_ptr,
    words_ptr,
    n_rows,
    n_groups,
    width,
    g_stride,
    s_gradient_stride,
    x_stride,
    ALIGN: gl.constexpr,
    PARTS: gl.constexpr,
    PIECE: gl.constexpr,
    COLUMNS: gl.constexpr,
    VECTOR: gl.constexpr,
    SLOTS: gl.constexpr,
    WORDS: gl.constexpr,
    WARPS: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    width *= ALIGN
    g_stride *= ALIGN
    s_gradient_stride *= ALIGN
    x_stride *= ALIGN
    EACH: gl.constexpr = COLUMNS // WARPS
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, VECTOR], [1, LANES], [WARPS, 1], [1, 0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    if DEPENDENT:
        gdc_wait()
    ticket = ticket_of(words_ptr)
    group = ticket // PARTS
    part = ticket % PARTS
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, LAYOUT))
    lane_column = gl.arange(0, EACH, layout=gl.SliceLayout(0, LAYOUT))
    within = warp[:, None] * EACH + lane_column[None, :]
    column = part * PIECE + within
    inside = (within < PIECE) & (column < width)
    gs = gl.allocate_shared_memory(g_ptr.dtype.element_ty, [SLOTS, WARPS, EACH], SHARED)
    xs = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [SLOTS, WARPS, EACH], SHARED)
    if s_gradient_ptr is not None:
        s_type: gl.constexpr = s_gradient_ptr.dtype.element_ty
        s_gradients = gl.allocate_shared_memory(s_type, [SLOTS, WARPS, EACH], SHARED)
    # What lies beyond the row is never copied, and stays 0.
    for each in gl.static_range(SLOTS):
        gs.index(each).store(gl.zeros([WARPS, EACH], g_ptr.dtype.element_ty, LAYOUT))
        xs.index(each).store(gl.zeros([WARPS, EACH], x_ptr.dtype.element_ty, LAYOUT))
    if weight_ptr is not None:
        weights = gl.allocate_shared_memory(weight_ptr.dtype.element_ty, [WARPS, EACH], SHARED)
        weights.store(gl.load(weight_ptr + column, mask=inside, other=0.0))
    n_mine = gl.cdiv(n_rows - group, n_groups)
    for turn in gl.static_range(SLOTS - LAG):
        first = (group + turn * n_groups).to(gl.int64)
        there = inside & (turn < n_mine)
        bring(gs.index(turn), g_ptr + first * g_stride, column, there)
        bring(xs.index(turn), x_ptr + first * x_stride, column, there)
        if s_gradient_ptr is not None:
            s_row = s_gradient_ptr + first * s_gradient_stride
            bring(s_gradients.index(turn), s_row, column, there)
        async_copy.commit_group()
    weight_total = gl.zeros([WARPS, EACH], gl.float32, LAYOUT)
    bias_total = gl.zeros([WARPS, EACH], gl.float32, LAYOUT)
    next_r = gl.load(r_ptr + group)
    next_mean = 0.0
    if mean_ptr is not None:
        next_mean = gl.load(mean_ptr + group)
    # Other values than the next ones': a name whose value before the loop is the one at its end is taken for
    # one that the loop does not change (Triton 3.6 and 3.7).
    r = gl.to_tensor(0.0)
    mean = gl.to_tensor(0.0)
    for turn in range(n_mine + LAG):
        done_r = r
        r = next_r
        if mean_ptr is not None:
            done_mean = mean
            mean = next_mean
        if turn < n_mine:
            row = group + turn * n_groups
            following = gl.minimum(row + n_groups, n_rows - 1)
            next_r = gl.load(r_ptr + following)
            if mean_ptr is not None:
                next_mean = gl.load(mean_ptr + following)
            async_copy.wait_group(SLOTS - LAG - 1)
            g = gs.index(turn % SLOTS).load(LAYOUT).to(gl.float32)
            x = xs.index(turn % SLOTS).load(LAYOUT).to(gl.float32)
            if mean_ptr is not None:
                x -= mean
            x *= r
            if weight_partial_ptr is not None:
                weight_total += g * x
            if bias_partial_ptr is not None:
                bias_total += g
            if weight_ptr is not None:
                g *= weights.load(LAYOUT).to(gl.float32)
            word = bits_of(gl.sum(g * x, 1))
            if mean_ptr is not None:
                word |= bits_of(gl.sum(g, 1)) << 32
            words = words_ptr + row.to(gl.int64) * (PARTS * WARPS) + part * WARPS + warp
            tell(words, word)
        if turn >= LAG:
            at = (group + (turn - LAG) * n_groups).to(gl.int64)
            words = words_ptr + at * (PARTS * WARPS)
            _, sums, sums_along_x = awaited(words, PARTS * WARPS, WORDS, WARPS)
            shift = gl.sum(sums, 0) / width
            along_x = gl.sum(sums_along_x, 0) / width
            done = (turn - LAG) % SLOTS
            g = gs.index(done).load(LAYOUT).to(gl.float32)
            x = xs.index(done).load(LAYOUT).to(gl.float32)
            if weight_ptr is not None:
                g *= weights.load(LAYOUT).to(gl.float32)
            if mean_ptr is not None:
                x -= done_mean
                g -= shift
            out = done_r * (g - (x * done_r) * along_x)
            if s_gradient_ptr is not None:
                out += s_gradients.index(done).load(LAYOUT).to(gl.float32)
            gl.store(out_ptr + at * width + column, out.to(out_ptr.dtype.element_ty), mask=inside)
        coming = turn - LAG + SLOTS
        later = (group + coming * n_groups).to(gl.int64)
        there = inside & (coming < n_mine)
        bring(gs.index(coming % SLOTS), g_ptr + later * g_stride, column, there)
        bring(xs.index(coming % SLOTS), x_ptr + later * x_stride, column, there)
        if s_gradient_ptr is not None:
            s_row = s_gradient_ptr + later * s_gradient_stride
            bring(s_gradients.index(coming % SLOTS), s_row, column, there)
        async_copy.commit_group()
    to = group.to(gl.int64) * width + column
    if weight_partial_ptr is not None:
        gl.store(weight_partial_ptr + to, weight_total, mask=inside)
    if bias_partial_ptr is not None:
        gl.store(bias_partial_ptr + to, bias_total, mask=inside)


def spread_backward(problem: Problem, settings: SpreadSettings) -> Partials:
    """Fills `problem.out`; only of rows of whole vectors."""
    n_rows, width = problem.x.shape
    n_parts = settings.parts(width)
    row_bytes = sum(each.element_size() for each in problem.rows)
    parameter_bytes = 0 if problem.weight is None else problem.weight.element_size()
    n_programs = settings.resident(row_bytes, parameter_bytes, problem.x.device)
    n_groups = max(1, min(n_rows, n_programs // n_parts))
    partials = problem.partials(n_groups)
    n_words = n_parts * settings.warps
    words = unset(n_rows * n_words, problem.x.device)
    launch(
        row_norm_bwd_spread,
        (n_groups * n_parts,),
        *problem.tensors,
        *partials,
        words,
        n_rows,
        n_groups,
        *problem.extents,
        n_parts,
        settings.piece(width),
        settings.columns,
        ACCESS_BYTES // problem.itemsize,
        settings.slots,
        max(WARP, power_of_two(n_words)),
        settings.warps,
        num_warps=settings.warps,
        **dependent(),
    )
    return partials
