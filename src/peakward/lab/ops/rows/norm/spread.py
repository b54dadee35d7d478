"""Gradients of normalised rows that are spread over several programs, in one pass over memory.

A program holds some columns of every row that its group goes through, and their sums for weight and bias.
What of a row's mean products the others' columns give comes through memory, a word a warp, and is awaited a
row late: by then it is there. Rows come through shared memory, from which they are read twice.

In Gluon, for Triton's pipeline holds a row ahead but not one behind.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_wait

from peakward.lab.ops.dependent import dependent
from peakward.lab.ops.rows.layout import ACCESS_BYTES, WARP, multiprocessors, power_of_two
from peakward.lab.ops.rows.norm.problem import Partials, Problem
from peakward.lab.ops.rows.norm.settings import SpreadSettings

UNSET = gl.constexpr(-1)
"""A word that no one has written: of two NaNs that no arithmetic gives."""
LAG = gl.constexpr(1)
"""Rows between a row's words and the use of them."""
_AGAIN = "{ .reg .pred p, q; AGAIN_${:uid}: "
_UNTIL = " @p bra AGAIN_${:uid}; }"
_LOAD = "ld.relaxed.gpu.global.b64 "
AWAIT_1 = gl.constexpr(f"{_AGAIN}{_LOAD}$0, [$1]; setp.eq.s64 p, $0, {UNSET.value};{_UNTIL}")
AWAIT_2 = gl.constexpr(
    f"{_AGAIN}{_LOAD}$0, [$2]; {_LOAD}$1, [$3];"
    f" setp.eq.s64 q, $0, {UNSET.value}; setp.eq.or.s64 p, $1, {UNSET.value}, q;{_UNTIL}"
)
AWAIT_4 = gl.constexpr(
    f"{_AGAIN}{_LOAD}$0, [$4]; {_LOAD}$1, [$5]; {_LOAD}$2, [$6]; {_LOAD}$3, [$7];"
    f" setp.eq.s64 p, $0, {UNSET.value}; setp.eq.or.s64 q, $1, {UNSET.value}, p;"
    f" setp.eq.or.s64 p, $2, {UNSET.value}, q; setp.eq.or.s64 q, $3, {UNSET.value}, p; mov.pred p, q;{_UNTIL}"
)
LANES = gl.constexpr(32)


@gluon.jit
def _bits(value):  # type: ignore[no-untyped-def]
    """fp32 in the low half of a word; of NaNs the one that makes no `UNSET`."""
    bits = value.to(gl.int32, bitcast=True)
    bits = gl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits)
    return bits.to(gl.int64) & 0xFFFFFFFF


@gluon.jit
def _awaited(words_ptr, n_words, WORDS: gl.constexpr, WARPS: gl.constexpr):  # type: ignore[no-untyped-def]
    """The sums of all words' high and low halves, as soon as all are there, in every warp by itself."""
    EACH: gl.constexpr = WORDS // LANES
    LAYOUT: gl.constexpr = gl.BlockedLayout([EACH], [LANES], [WARPS], [0])
    word = gl.arange(0, WORDS, layout=LAYOUT)
    at = (words_ptr + gl.where(word < n_words, word, 0)).to(gl.int64)
    if EACH == 1:
        found = gl.inline_asm_elementwise(
            AWAIT_1, "=&l,l", [at], dtype=gl.int64, is_pure=False, pack=1
        )
    elif EACH == 2:
        found = gl.inline_asm_elementwise(
            AWAIT_2, "=&l,=&l,l,l", [at], dtype=gl.int64, is_pure=False, pack=2
        )
    else:
        found = gl.inline_asm_elementwise(
            AWAIT_4, "=&l,=&l,=&l,=&l,l,l,l,l", [at], dtype=gl.int64, is_pure=False, pack=4
        )
    low = found.to(gl.int32).to(gl.float32, bitcast=True)
    high = (found >> 32).to(gl.int32).to(gl.float32, bitcast=True)
    low, high = gl.where(word < n_words, low, 0.0), gl.where(word < n_words, high, 0.0)
    return gl.sum(high, 0), gl.sum(low, 0)


@gluon.jit
def _bring(slot, row_ptr, column, inside):  # type: ignore[no-untyped-def]
    async_copy.async_copy_global_to_shared(slot, row_ptr + column, mask=inside)


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
    # In the order in which programs begin: a group whose members are not all resident is the last one, and
    # waits for a whole one to end.
    ticket = gl.atomic_add(words_ptr.to(gl.pointer_type(gl.int32)), 1, sem="relaxed") - UNSET
    words_ptr += 1
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
        _bring(gs.index(turn), g_ptr + first * g_stride, column, there)
        _bring(xs.index(turn), x_ptr + first * x_stride, column, there)
        if s_gradient_ptr is not None:
            s_row = s_gradient_ptr + first * s_gradient_stride
            _bring(s_gradients.index(turn), s_row, column, there)
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
            word = _bits(gl.sum(g * x, 1))
            if mean_ptr is not None:
                word |= _bits(gl.sum(g, 1)) << 32
            words = words_ptr + row.to(gl.int64) * (PARTS * WARPS) + part * WARPS + warp
            gl.atomic_xchg(words, word, sem="relaxed", scope="gpu")
        if turn >= LAG:
            at = (group + (turn - LAG) * n_groups).to(gl.int64)
            words = words_ptr + at * (PARTS * WARPS)
            shift, along_x = _awaited(words, PARTS * WARPS, WORDS, WARPS)
            shift /= width
            along_x /= width
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
        _bring(gs.index(coming % SLOTS), g_ptr + later * g_stride, column, there)
        _bring(xs.index(coming % SLOTS), x_ptr + later * x_stride, column, there)
        if s_gradient_ptr is not None:
            s_row = s_gradient_ptr + later * s_gradient_stride
            _bring(s_gradients.index(coming % SLOTS), s_row, column, there)
        async_copy.commit_group()
    to = group.to(gl.int64) * width + column
    if weight_partial_ptr is not None:
        gl.store(weight_partial_ptr + to, weight_total, mask=inside)
    if bias_partial_ptr is not None:
        gl.store(bias_partial_ptr + to, bias_total, mask=inside)


def spread(problem: Problem, settings: SpreadSettings) -> Partials:
    """Fills `problem.out`; only of rows of whole vectors."""
    n_rows, width = problem.x.shape
    n_parts = settings.parts(width)
    n_programs = settings.programs * multiprocessors(problem.x.device)
    n_groups = max(1, min(n_rows, n_programs // n_parts))
    partials = problem.partials(n_groups)
    n_words = n_parts * settings.warps
    words = torch.full(
        (1 + n_rows * n_words,), UNSET.value, dtype=torch.int64, device=problem.x.device
    )
    row_norm_bwd_spread[(n_groups * n_parts,)](
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
