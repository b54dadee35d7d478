"""Attention of some queries to one piece of the keys."""

import math

import triton
import triton.language as tl

from peakward.kernels.ops.decode_attention.triton.narrow import (
    digits,
    first_of_two,
    product_of_digits,
    twice,
    widened_bytes,
    widened_halves,
)
from peakward.kernels.ops.rows.vectors import COMPILED

LN_2: tl.constexpr = tl.constexpr(math.log(2))
LEAST_ROWS: tl.constexpr = tl.constexpr(16)
"""A product has at least as many. Fewer queries are in it twice, and out of it, half as many scores are to be
turned to weights."""


@triton.jit
def _wide_product(x, factor, ALIGN: tl.constexpr):  # type: ignore[no-untyped-def]
    """x · factor in 64 bits, of numbers in 32, the second a multiple of ALIGN."""
    if COMPILED:
        # One instruction with the sum that follows. Widened first, the factor leaves the loop as a number of
        # 64 bits, and a row's address takes six.
        product = tl.inline_asm_elementwise(
            "mul.wide.s32 $0, $1, $2;", "=l,r,r", [x, factor], dtype=tl.int64, is_pure=True, pack=1
        )
        return tl.multiple_of(product, ALIGN)
    else:
        return x.to(tl.int64) * factor


@triton.jit
def _queries(  # type: ignore[no-untyped-def]
    rows,
    q_dim,
    is_row,
    scale_log2,
    dtype: tl.constexpr,
    stored: tl.constexpr,
    N_GROUPS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Queries (rows, dims) as keys in `stored` are multiplied by them, each row twice where they are digits
    or fewer than a product has, and the factors of the rows, (rows,)."""
    to_log2 = tl.full(is_row.shape, 1.0, tl.float32) * scale_log2
    dim = tl.arange(0, BLOCK_DIM)
    if N_GROUPS:  # As `_beside` puts the parts of keys.
        dim = dim % (BLOCK_DIM // 4) * 4 + dim // (BLOCK_DIM // 4)
    within = is_row[:, None] & (dim < HEAD_DIM)[None, :]
    q = tl.load(rows[:, None] + dim[None, :] * q_dim, mask=within, other=0.0)
    if stored == tl.int8 and dtype != tl.float32:
        q, unit = digits(q)
        to_log2 *= unit
    elif q.dtype != dtype:
        peak = tl.max(tl.abs(q.to(tl.float32)), 1)
        peak = tl.where(peak == 0.0, 1.0, peak)
        q = (q.to(tl.float32) / peak[:, None]).to(dtype)
        to_log2 *= peak
    if q.shape[0] < LEAST_ROWS:
        q = twice(q)
    return q, to_log2


@triton.jit
def _elements(  # type: ignore[no-untyped-def]
    rows,
    words,
    dtype: tl.constexpr,
    N_GROUPS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """The elements of dimensions 4·i, 4·i + 1, 4·i + 2 and 4·i + 3 of some positions, each (positions,
    BLOCK_DIM / 4), from their bytes and from the words of their groups: the step below, the least element
    above, both in bf16. By two bytes, which are turned in shared memory by one instruction for many."""
    # Several groups have 32 dimensions each. A single one may have any number, and those that pad it.
    groups: tl.constexpr = BLOCK_DIM // 32 if N_GROUPS > 1 else 1
    quad = tl.arange(0, BLOCK_DIM // 4)
    fetched = (quad < HEAD_DIM // 4)[None, :]
    quads = rows.to(tl.pointer_type(tl.int16), bitcast=True)
    stored = tl.load(quads[:, None] + quad[None, :], mask=fetched, other=0)
    group = tl.arange(0, groups)
    is_group = (group < N_GROUPS)[None, :]
    word = tl.load(words[:, None] + group[None, :], mask=is_group, other=0)
    if dtype == tl.bfloat16:
        step = word.to(tl.int16).to(tl.bfloat16, bitcast=True)
        least = (word >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        # Both are exact in fp16 too, unless a step is below 2⁻¹⁴, the least that it holds in full.
        step = (word << 16).to(tl.float32, bitcast=True).to(dtype)
        least = (word & -65536).to(tl.float32, bitcast=True).to(dtype)
    # A load for every quad would ask the first cache 8 times for the same word.
    shape: tl.constexpr = (stored.shape[0], groups, BLOCK_DIM // 4 // groups)
    step = tl.reshape(tl.broadcast_to(step[:, :, None], shape), stored.shape)
    least = tl.reshape(tl.broadcast_to(least[:, :, None], shape), stored.shape)
    return widened_halves(stored, step, least, dtype)


@triton.jit
def _beside(x, x_1, x_2, x_3):  # type: ignore[no-untyped-def]
    """Columns of four tensors, those of one behind those of the other: a thread's registers stay its own."""
    all_four = tl.permute(tl.join(tl.join(x, x_1), tl.join(x_2, x_3)), (0, 3, 2, 1))
    return tl.reshape(all_four, (x.shape[0], 4 * x.shape[1]))


@triton.jit
def _in_order(x, x_1, x_2, x_3):  # type: ignore[no-untyped-def]
    """Columns of which four tensors have every fourth, from 0, 1, 2 and 3 on."""
    return tl.interleave(tl.interleave(x, x_2), tl.interleave(x_1, x_3))


@triton.jit
def _scores(  # type: ignore[no-untyped-def]
    q,
    to_log2,
    k_rows,
    k_dim,
    scale_ptr,
    scales_at,
    QUANTIZED: tl.constexpr,
    N_GROUPS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """The scores of a block of keys and the queries, (positions, rows), times the rows' factors `to_log2`."""
    if N_GROUPS:
        words = scale_ptr + scales_at
        k = _beside(*_elements(k_rows, words, q.dtype, N_GROUPS, BLOCK_DIM, HEAD_DIM))
        score = tl.dot(k, tl.trans(q), input_precision="ieee")
    else:
        dim = tl.arange(0, BLOCK_DIM)
        fetched = (dim < HEAD_DIM)[None, :]
        k = tl.load(k_rows[:, None] + dim[None, :] * k_dim, mask=fetched, other=0.0)
        if q.dtype == tl.int8:
            score = product_of_digits(k, q)
        else:
            score = tl.dot(k.to(q.dtype), tl.trans(q), input_precision="ieee")
    if score.shape[1] > to_log2.shape[0]:
        score = tl.split(tl.reshape(score, (score.shape[0], to_log2.shape[0], 2)))[0]
    if QUANTIZED:
        score *= tl.load(scale_ptr + scales_at).to(tl.float32)[:, None]
    return score * to_log2[None, :]


@triton.jit
def _weighed(  # type: ignore[no-untyped-def]
    weight,
    shrink,
    acc,
    acc_1,
    acc_2,
    acc_3,
    v_rows,
    v_dim,
    scale_ptr,
    scales_at,
    held,
    dtype: tl.constexpr,
    QUANTIZED: tl.constexpr,
    N_GROUPS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """The sums so far times `shrink`, and a block of values by their weights (positions, rows): of all
    dimensions, or of every second or fourth from 0, 1, 2 and 3 on."""
    if QUANTIZED:
        v_scale = tl.load(scale_ptr + scales_at).to(tl.float32)
        unit = 1.0
        if dtype == tl.float16:
            # Relative to the block's largest, so that no weight falls out of fp16's range.
            unit = tl.max(v_scale, 0)
            v_scale /= tl.where(unit == 0.0, 1.0, unit)
        weight *= v_scale[:, None]
    weight, shrink = tl.trans(weight.to(dtype)), shrink[:, None]
    if weight.shape[0] < LEAST_ROWS:
        weight, shrink = twice(weight), twice(shrink)
    if QUANTIZED:
        # Pairs of columns: turning 16-bit elements in shared memory is one instruction for many,
        # bytes go one by one.
        pair = tl.arange(0, BLOCK_DIM // 2)
        fetched = (pair < HEAD_DIM // 2)[None, :]
        pairs = v_rows.to(tl.pointer_type(tl.int16), bitcast=True)
        v = tl.load(pairs[:, None] + pair[None, :], mask=fetched, other=0)
        stored: tl.constexpr = v_rows.dtype.element_ty
        even, odd = widened_bytes(v, stored, dtype)
        acc = acc * shrink + tl.dot(weight, even, input_precision="ieee") * unit
        acc_1 = acc_1 * shrink + tl.dot(weight, odd, input_precision="ieee") * unit
    elif N_GROUPS:
        words = scale_ptr + scales_at
        v, v_1, v_2, v_3 = _elements(v_rows, words, dtype, N_GROUPS, BLOCK_DIM, HEAD_DIM)
        if acc.shape[1] == BLOCK_DIM:  # Four warps would share the 16 columns of a part.
            v = _in_order(v, v_1, v_2, v_3)
        acc = tl.dot(weight, v, acc * shrink, input_precision="ieee")
        if acc.shape[1] < BLOCK_DIM:
            acc_1 = tl.dot(weight, v_1, acc_1 * shrink, input_precision="ieee")
            acc_2 = tl.dot(weight, v_2, acc_2 * shrink, input_precision="ieee")
            acc_3 = tl.dot(weight, v_3, acc_3 * shrink, input_precision="ieee")
    else:
        dim = tl.arange(0, BLOCK_DIM)
        fetched = held[:, None] & (dim < HEAD_DIM)[None, :]
        v = tl.load(v_rows[:, None] + dim[None, :] * v_dim, mask=fetched, other=0.0)
        acc = tl.dot(weight, v, acc * shrink, input_precision="ieee")
    return acc, acc_1, acc_2, acc_3


@triton.jit
def decode_attention_pieces(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    table_ptr,
    lengths_ptr,
    out_ptr,
    lse_ptr,
    positions,
    window,
    scale_log2,
    q_batch,
    q_head,
    q_query,
    q_dim,
    k_batch,
    k_head,
    k_position,
    k_dim,
    v_batch,
    v_head,
    v_position,
    v_dim,
    ks_batch,
    ks_head,
    ks_position,
    vs_batch,
    vs_head,
    vs_position,
    table_batch,
    table_page,
    n_groups,
    kv_heads,
    row_blocks,
    ROWS: tl.constexpr,
    N_QUERIES: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    WINDOWED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    N_GROUPS: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One piece of the keys of the heads that share them. In a paged cache `*_batch` is a page's
    stride and `*_position` that of a position within its page. With N_GROUPS an element has half a byte, and
    a position's scales are so many words, a group's step and least element in each."""
    # To fp16 a pair of e4m3 is widened in one instruction, to bf16 in four.
    halved: tl.constexpr = (
        k_ptr.dtype.element_ty == tl.float8e4nv and q_ptr.dtype.element_ty == tl.bfloat16
    )
    dtype: tl.constexpr = tl.float16 if halved else q_ptr.dtype.element_ty
    PARTS: tl.constexpr = 2 if QUANTIZED else 4 if N_GROUPS > 0 and BLOCK_DIM > 64 else 1
    k_batch *= ALIGN
    k_head *= ALIGN
    k_position *= ALIGN
    v_batch *= ALIGN
    v_head *= ALIGN
    v_position *= ALIGN
    program = tl.program_id(0)
    group = program // row_blocks
    batch = (group // kv_heads).to(tl.int64)
    head = (group % kv_heads).to(tl.int64)
    length = positions
    if HAS_LENGTHS:
        length = tl.load(lengths_ptr + batch).to(tl.int32)
    first = 0
    if WINDOWED:
        first = tl.maximum(length - N_QUERIES - window + 1, 0)
    chunk = tl.cdiv(tl.cdiv(length - first, tl.num_programs(1)), BLOCK) * BLOCK
    low = first + tl.program_id(1) * chunk
    high = tl.minimum(low + chunk, length)

    row = (program % row_blocks) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_row = row < ROWS
    own = length - N_QUERIES + row % N_QUERIES
    dim = tl.arange(0, BLOCK_DIM)
    is_dim = (dim < HEAD_DIM)[None, :]
    q_head_of_row = head * (ROWS // N_QUERIES) + row // N_QUERIES
    q_rows = q_ptr + batch * q_batch + q_head_of_row * q_head + (row % N_QUERIES) * q_query
    within = is_row[:, None] & is_dim
    q, to_log2 = _queries(
        *(q_rows, q_dim, is_row, scale_log2, dtype, k_ptr.dtype.element_ty),
        *(N_GROUPS, BLOCK_DIM, HEAD_DIM),
    )
    acc = tl.zeros((max(LEAST_ROWS, BLOCK_ROWS), BLOCK_DIM // PARTS), tl.float32)
    acc_1, acc_2, acc_3 = acc, acc, acc
    largest = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    # Of few rows the sums of weights are left apart until the end, for each of a block's positions.
    APART: tl.constexpr = BLOCK_ROWS <= 16
    total = tl.zeros((BLOCK if APART else 1, BLOCK_ROWS), tl.float32)

    for start in range(low, high, BLOCK):
        position = start + tl.arange(0, BLOCK)
        held = position < length
        # What is not held weighs nothing, so that the last position may stand for it: a mask takes four
        # instructions a row. It has to be finite, which only elements of narrow types are.
        at = tl.minimum(position, length - 1)
        if PAGE_SIZE:
            entry = table_ptr + batch * table_batch + (at // PAGE_SIZE) * table_page
            page = tl.load(entry).to(tl.int64)
            slot = at % PAGE_SIZE
        else:
            page = batch
            slot = at
        k_rows = k_ptr + page * k_batch + head * k_head + _wide_product(slot, k_position, ALIGN)
        v_rows = v_ptr + page * v_batch + head * v_head + _wide_product(slot, v_position, ALIGN)
        scales_at = page * ks_batch + head * ks_head + _wide_product(slot, ks_position, 1)
        score = _scores(
            *(q, to_log2, k_rows, k_dim, k_scale_ptr, scales_at),
            *(QUANTIZED, N_GROUPS, BLOCK_DIM, HEAD_DIM),
        )
        allowed = position[:, None] <= own[None, :]
        if WINDOWED:
            allowed = allowed & (position[:, None] > own[None, :] - window)
        score = tl.where(allowed, score, float("-inf"))

        raised = tl.maximum(largest, tl.max(score, 0))
        # Where nothing is allowed yet: minus infinity less itself would be NaN.
        shift = tl.where(raised == float("-inf"), 0.0, raised)
        weight = tl.exp2(score - shift[None, :])
        shrink = tl.exp2(largest - shift)
        total = total * shrink[None, :] + (weight if APART else tl.sum(weight, 0, keep_dims=True))
        largest = raised
        scales_at = page * vs_batch + head * vs_head + _wide_product(slot, vs_position, 1)
        acc, acc_1, acc_2, acc_3 = _weighed(
            *(
                weight,
                shrink,
                acc,
                acc_1,
                acc_2,
                acc_3,
                v_rows,
                v_dim,
                v_scale_ptr,
                scales_at,
                held,
            ),
            *(dtype, QUANTIZED, N_GROUPS, BLOCK_DIM, HEAD_DIM),
        )

    if BLOCK_ROWS < LEAST_ROWS:
        acc, acc_1 = first_of_two(acc), first_of_two(acc_1)
        acc_2, acc_3 = first_of_two(acc_2), first_of_two(acc_3)
    if PARTS == 2:
        acc = tl.interleave(acc, acc_1)
    elif PARTS == 4:
        acc = _in_order(acc, acc_1, acc_2, acc_3)
    total = tl.sum(total, 0)
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    lse = tl.where(is_empty, float("-inf"), (largest + tl.log2(total)) * LN_2)
    out_row = (tl.program_id(1).to(tl.int64) * n_groups + group) * ROWS + row
    tl.store(lse_ptr + out_row, lse, mask=is_row)
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_row[:, None] * HEAD_DIM + dim[None, :], out, mask=within)
