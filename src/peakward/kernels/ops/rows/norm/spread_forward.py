"""Rows that are spread over several programs normalised, in one pass over memory.

The words of a row are the mean and the squared distances from it of a warp's columns (Chan et al. 1983,
equations 2.1), or without a mean its squares.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_wait

from peakward.kernels.ops.dependent import dependent
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.layout import ACCESS_BYTES, WARP, power_of_two
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


@gluon.jit
def _row(xs, residuals, slot, ADDED: gl.constexpr, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """x, or its sum with the residual, in x's type."""
    s = xs.index(slot).load(LAYOUT)
    if ADDED:
        added = residuals.index(slot).load(LAYOUT).to(gl.float32)
        s = (s.to(gl.float32) + added).to(xs.dtype)
    return s


@gluon.jit
def _columns_of(word, width, PIECE: gl.constexpr, EACH: gl.constexpr, WARPS: gl.constexpr):  # type: ignore[no-untyped-def]
    """How many columns the warp of a word has."""
    first = (word % WARPS) * EACH
    last = gl.minimum(gl.minimum(first + EACH, PIECE), width - (word // WARPS) * PIECE)
    return gl.maximum(last - first, 0).to(gl.float32)


@gluon.jit(do_not_specialize=["n_rows", "n_groups"])
def row_norm_fwd_spread(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    s_ptr,
    mean_ptr,
    r_ptr,
    width,
    x_stride,
    residual_stride,
    eps,
    ALIGN: gl.constexpr,
    words_ptr,
    n_rows,
    n_groups,
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
    x_stride *= ALIGN
    residual_stride *= ALIGN
    ADDED: gl.constexpr = residual_ptr is not None
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
    n_own = _columns_of(part * WARPS + warp, width, PIECE, EACH, WARPS)
    xs = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [SLOTS, WARPS, EACH], SHARED)
    residuals = xs
    if residual_ptr is not None:
        residuals = gl.allocate_shared_memory(
            residual_ptr.dtype.element_ty, [SLOTS, WARPS, EACH], SHARED
        )
    # What lies beyond the row is never copied, and stays 0.
    for each in gl.static_range(SLOTS):
        xs.index(each).store(gl.zeros([WARPS, EACH], x_ptr.dtype.element_ty, LAYOUT))
        if residual_ptr is not None:
            zeros = gl.zeros([WARPS, EACH], residual_ptr.dtype.element_ty, LAYOUT)
            residuals.index(each).store(zeros)
    if weight_ptr is not None:
        weights = gl.allocate_shared_memory(weight_ptr.dtype.element_ty, [WARPS, EACH], SHARED)
        weights.store(gl.load(weight_ptr + column, mask=inside, other=0.0))
    if bias_ptr is not None:
        biases = gl.allocate_shared_memory(bias_ptr.dtype.element_ty, [WARPS, EACH], SHARED)
        biases.store(gl.load(bias_ptr + column, mask=inside, other=0.0))
    n_mine = gl.cdiv(n_rows - group, n_groups)
    for turn in gl.static_range(SLOTS - LAG):
        first = (group + turn * n_groups).to(gl.int64)
        there = inside & (turn < n_mine)
        bring(xs.index(turn), x_ptr + first * x_stride, column, there)
        if residual_ptr is not None:
            residual_row = residual_ptr + first * residual_stride
            bring(residuals.index(turn), residual_row, column, there)
        async_copy.commit_group()
    for turn in range(n_mine + LAG):
        if turn < n_mine:
            row = (group + turn * n_groups).to(gl.int64)
            async_copy.wait_group(SLOTS - LAG - 1)
            s = _row(xs, residuals, turn % SLOTS, ADDED, LAYOUT)
            if residual_ptr is not None:
                gl.store(s_ptr + row * width + column, s, mask=inside)
            x = s.to(gl.float32)
            words = words_ptr + row * (PARTS * WARPS) + part * WARPS + warp
            if mean_ptr is not None:
                own_mean = gl.sum(x, 1) / gl.maximum(n_own, 1.0)
                x = gl.where(inside, x - own_mean[:, None], 0.0)
                tell(words, bits_of(gl.sum(x * x, 1)) | bits_of(own_mean) << 32)
            else:
                tell(words, bits_of(gl.sum(x * x, 1)))
        if turn >= LAG:
            at = (group + (turn - LAG) * n_groups).to(gl.int64)
            words = words_ptr + at * (PARTS * WARPS)
            word, means, squares = awaited(words, PARTS * WARPS, WORDS, WARPS)
            if mean_ptr is not None:
                n = gl.where(
                    word < PARTS * WARPS, _columns_of(word, width, PIECE, EACH, WARPS), 0.0
                )
                mean = gl.sum(n * means, 0) / width
                # What the first sum's rounding lost.
                mean += gl.sum(n * (means - mean), 0) / width
                distance = gl.where(n > 0, means - mean, 0.0)
                squares += n * distance * distance
            r = gl.div_rn(1.0, gl.sqrt_rn(gl.sum(squares, 0) / width + eps))
            if part == 0:
                gl.store(r_ptr + at, r)
                if mean_ptr is not None:
                    gl.store(mean_ptr + at, mean)
            y = _row(xs, residuals, (turn - LAG) % SLOTS, ADDED, LAYOUT).to(gl.float32)
            if mean_ptr is not None:
                y -= mean
            y *= r
            if weight_ptr is not None:
                y *= weights.load(LAYOUT).to(gl.float32)
            if bias_ptr is not None:
                y += biases.load(LAYOUT).to(gl.float32)
            gl.store(y_ptr + at * width + column, y.to(y_ptr.dtype.element_ty), mask=inside)
        coming = turn - LAG + SLOTS
        later = (group + coming * n_groups).to(gl.int64)
        there = inside & (coming < n_mine)
        bring(xs.index(coming % SLOTS), x_ptr + later * x_stride, column, there)
        if residual_ptr is not None:
            residual_row = residual_ptr + later * residual_stride
            bring(residuals.index(coming % SLOTS), residual_row, column, there)
        async_copy.commit_group()


def spread_forward(
    tensors: tuple[Tensor | None, ...],
    extents: tuple[int | float, ...],
    x: Tensor,
    settings: SpreadSettings,
) -> None:
    """Fills y, s, mean and r of `tensors`, which with `extents` are what kernels of `forward` are handed, of
    rows of whole vectors alone."""
    n_rows, width = x.shape
    n_parts = settings.parts(width)
    _, residual, weight, bias = tensors[:4]
    row_bytes, parameter_bytes = (
        sum(each.element_size() for each in some if each is not None)
        for some in ((x, residual), (weight, bias))
    )
    n_programs = settings.resident(row_bytes, parameter_bytes, x.device)
    n_groups = max(1, min(n_rows, n_programs // n_parts))
    n_words = n_parts * settings.warps
    launch(
        row_norm_fwd_spread,
        (n_groups * n_parts,),
        *tensors,
        *extents,
        unset(n_rows * n_words, x.device),
        n_rows,
        n_groups,
        n_parts,
        settings.piece(width),
        settings.columns,
        ACCESS_BYTES // x.element_size(),
        settings.slots,
        max(WARP, power_of_two(n_words)),
        settings.warps,
        num_warps=settings.warps,
        **dependent(),
    )
