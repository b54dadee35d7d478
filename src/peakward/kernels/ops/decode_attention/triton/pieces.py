"""Attention of some queries to one piece of the keys."""

import math

import triton
import triton.language as tl

LN_2: tl.constexpr = tl.constexpr(math.log(2))


@triton.jit
def _widened(  # type: ignore[no-untyped-def]
    stored,
    step,
    least,
    dtype: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """The elements whose half bytes begin at bit SHIFT, rounded once, as `reference.unpacked` has them."""
    n = (stored >> SHIFT) & 15
    # 128 + n, or 1024 + n, by its bits: a conversion takes several instructions an element.
    if dtype == tl.bfloat16:
        whole = (n | 0x4300).to(tl.bfloat16, bitcast=True) - 128.0
    elif dtype == tl.float16:
        whole = (n | 0x6400).to(tl.float16, bitcast=True) - 1024.0
    else:
        whole = n.to(dtype)
    return tl.fma(whole.to(dtype), step, least)


@triton.jit
def _elements(  # type: ignore[no-untyped-def]
    rows,
    words,
    held,
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
    fetched = held[:, None] & (quad < HEAD_DIM // 4)[None, :]
    quads = rows.to(tl.pointer_type(tl.int16), bitcast=True)
    stored = tl.load(quads[:, None] + quad[None, :], mask=fetched, other=0)
    group = tl.arange(0, groups)
    is_group = held[:, None] & (group < N_GROUPS)[None, :]
    word = tl.load(words[:, None] + group[None, :], mask=is_group, other=0)
    # Both are exact in fp16 too, unless a step is below 2⁻¹⁴, the least that it holds in full.
    step = (word << 16).to(tl.float32, bitcast=True).to(dtype)
    least = (word & -65536).to(tl.float32, bitcast=True).to(dtype)
    # A load for every quad would ask the first cache 8 times for the same word.
    shape: tl.constexpr = (stored.shape[0], groups, BLOCK_DIM // 4 // groups)
    step = tl.reshape(tl.broadcast_to(step[:, :, None], shape), stored.shape)
    least = tl.reshape(tl.broadcast_to(least[:, :, None], shape), stored.shape)
    return (
        _widened(stored, step, least, dtype, 0),
        _widened(stored, step, least, dtype, 4),
        _widened(stored, step, least, dtype, 8),
        _widened(stored, step, least, dtype, 12),
    )


@triton.jit
def _scores(  # type: ignore[no-untyped-def]
    q,
    q_1,
    q_2,
    q_3,
    to_log2,
    k_rows,
    k_dim,
    scale_ptr,
    scales_at,
    held,
    QUANTIZED: tl.constexpr,
    N_GROUPS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """The scores of the queries and a block of keys, (rows, positions), times the rows' factors `to_log2`."""
    if N_GROUPS:
        words = scale_ptr + scales_at
        k, k_1, k_2, k_3 = _elements(k_rows, words, held, q.dtype, N_GROUPS, BLOCK_DIM, HEAD_DIM)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        score = tl.dot(q_1, tl.trans(k_1), score, input_precision="ieee")
        score = tl.dot(q_2, tl.trans(k_2), score, input_precision="ieee")
        score = tl.dot(q_3, tl.trans(k_3), score, input_precision="ieee") * to_log2[:, None]
    else:
        dim = tl.arange(0, BLOCK_DIM)
        fetched = held[:, None] & (dim < HEAD_DIM)[None, :]
        k = tl.load(k_rows[:, None] + dim[None, :] * k_dim, mask=fetched, other=0.0)
        score = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * to_log2[:, None]
        if QUANTIZED:
            score *= tl.load(scale_ptr + scales_at, mask=held, other=0.0).to(tl.float32)[None, :]
    return score


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
    """The sums so far times `shrink`, and a block of values by their weights (rows, positions): of all
    dimensions, or of every second or fourth from 0, 1, 2 and 3 on."""
    if QUANTIZED:
        # Relative to the block's largest, so that no weight falls out of fp16's range.
        v_scale = tl.load(scale_ptr + scales_at, mask=held, other=0.0).to(tl.float32)
        unit = tl.max(v_scale, 0)
        weight *= (v_scale / tl.where(unit == 0.0, 1.0, unit))[None, :]
        weight = weight.to(dtype)
        # Pairs of columns: turning 16-bit elements in shared memory is one instruction for many,
        # bytes go one by one.
        pair = tl.arange(0, BLOCK_DIM // 2)
        fetched = held[:, None] & (pair < HEAD_DIM // 2)[None, :]
        pairs = v_rows.to(tl.pointer_type(tl.int16), bitcast=True)
        v = tl.load(pairs[:, None] + pair[None, :], mask=fetched, other=0)
        stored: tl.constexpr = v_rows.dtype.element_ty
        even = v.to(tl.int8).to(stored, bitcast=True).to(dtype)
        odd = (v >> 8).to(tl.int8).to(stored, bitcast=True).to(dtype)
        acc = acc * shrink[:, None] + tl.dot(weight, even, input_precision="ieee") * unit
        acc_1 = acc_1 * shrink[:, None] + tl.dot(weight, odd, input_precision="ieee") * unit
    elif N_GROUPS:
        words = scale_ptr + scales_at
        v, v_1, v_2, v_3 = _elements(v_rows, words, held, dtype, N_GROUPS, BLOCK_DIM, HEAD_DIM)
        weight, shrink = weight.to(dtype), shrink[:, None]
        acc = tl.dot(weight, v, acc * shrink, input_precision="ieee")
        acc_1 = tl.dot(weight, v_1, acc_1 * shrink, input_precision="ieee")
        acc_2 = tl.dot(weight, v_2, acc_2 * shrink, input_precision="ieee")
        acc_3 = tl.dot(weight, v_3, acc_3 * shrink, input_precision="ieee")
    else:
        dim = tl.arange(0, BLOCK_DIM)
        fetched = held[:, None] & (dim < HEAD_DIM)[None, :]
        v = tl.load(v_rows[:, None] + dim[None, :] * v_dim, mask=fetched, other=0.0)
        acc *= shrink[:, None]
        acc = tl.dot(weight.to(v.dtype), v, acc, input_precision="ieee")
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
    PARTS: tl.constexpr = 4 if N_GROUPS > 0 else 2 if QUANTIZED else 1
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
    part = tl.arange(0, BLOCK_DIM // 4)
    are_within = is_row[:, None] & (part < HEAD_DIM // 4)[None, :]
    parts = q_rows[:, None] + (4 * part)[None, :] * q_dim
    if N_GROUPS:
        q = tl.load(parts, mask=are_within, other=0.0)
        q_1 = tl.load(parts + q_dim, mask=are_within, other=0.0)
        q_2 = tl.load(parts + 2 * q_dim, mask=are_within, other=0.0)
        q_3 = tl.load(parts + 3 * q_dim, mask=are_within, other=0.0)
    else:
        q = tl.load(q_rows[:, None] + dim[None, :] * q_dim, mask=within, other=0.0)
        q_1, q_2, q_3 = q, q, q
    to_log2 = tl.full((BLOCK_ROWS,), 1.0, tl.float32) * scale_log2
    if (k_ptr.dtype.element_ty == tl.float8e4nv) and (q.dtype == tl.bfloat16):
        # To fp16 a pair of e4m3 is widened in one instruction, to bf16 in four.
        peak = tl.max(tl.abs(q.to(tl.float32)), 1)
        peak = tl.where(peak == 0.0, 1.0, peak)
        q = (q.to(tl.float32) / peak[:, None]).to(tl.float16)
        to_log2 *= peak
    acc = tl.zeros((BLOCK_ROWS, BLOCK_DIM // PARTS), tl.float32)
    acc_1, acc_2, acc_3 = acc, acc, acc
    largest = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)

    for start in range(low, high, BLOCK):
        position = start + tl.arange(0, BLOCK)
        held = position < length
        if PAGE_SIZE:
            entry = table_ptr + batch * table_batch + (position // PAGE_SIZE) * table_page
            page = tl.load(entry, mask=held, other=0).to(tl.int64)
            slot = position % PAGE_SIZE
        else:
            page = batch
            slot = position.to(tl.int64)
        k_rows = k_ptr + page * k_batch + head * k_head + slot * k_position
        v_rows = v_ptr + page * v_batch + head * v_head + slot * v_position
        scales_at = page * ks_batch + head * ks_head + slot * ks_position
        score = _scores(
            *(q, q_1, q_2, q_3, to_log2, k_rows, k_dim, k_scale_ptr, scales_at, held),
            *(QUANTIZED, N_GROUPS, BLOCK_DIM, HEAD_DIM),
        )
        allowed = position[None, :] <= own[:, None]
        if WINDOWED:
            allowed = allowed & (position[None, :] > own[:, None] - window)
        score = tl.where(allowed, score, float("-inf"))

        raised = tl.maximum(largest, tl.max(score, 1))
        # Where nothing is allowed yet: minus infinity less itself would be NaN.
        shift = tl.where(raised == float("-inf"), 0.0, raised)
        weight = tl.exp2(score - shift[:, None])
        shrink = tl.exp2(largest - shift)
        total = total * shrink + tl.sum(weight, 1)
        largest = raised
        scales_at = page * vs_batch + head * vs_head + slot * vs_position
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
            *(q.dtype, QUANTIZED, N_GROUPS, BLOCK_DIM, HEAD_DIM),
        )

    if PARTS == 2:
        acc = tl.interleave(acc, acc_1)
    elif PARTS == 4:
        acc = tl.interleave(tl.interleave(acc, acc_2), tl.interleave(acc_1, acc_3))
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    lse = tl.where(is_empty, float("-inf"), (largest + tl.log2(total)) * LN_2)
    out_row = (tl.program_id(1).to(tl.int64) * n_groups + group) * ROWS + row
    tl.store(lse_ptr + out_row, lse, mask=is_row)
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_row[:, None] * HEAD_DIM + dim[None, :], out, mask=within)
