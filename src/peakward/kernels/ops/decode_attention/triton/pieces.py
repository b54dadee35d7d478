"""Attention of some queries to one piece of the keys."""

import math

import triton
import triton.language as tl

LN_2: tl.constexpr = tl.constexpr(math.log(2))


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
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One piece of the keys of the heads that share them. In a paged cache `*_batch` is a page's
    stride and `*_position` that of a position within its page."""
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
    q = tl.load(q_rows[:, None] + dim[None, :] * q_dim, mask=within, other=0.0)
    to_log2 = tl.full((BLOCK_ROWS,), 1.0, tl.float32) * scale_log2
    if (k_ptr.dtype.element_ty == tl.float8e4nv) and (q.dtype == tl.bfloat16):
        # To fp16 a pair of e4m3 is widened in one instruction, to bf16 in four.
        peak = tl.max(tl.abs(q.to(tl.float32)), 1)
        peak = tl.where(peak == 0.0, 1.0, peak)
        q = (q.to(tl.float32) / peak[:, None]).to(tl.float16)
        to_log2 *= peak
    acc = tl.zeros((BLOCK_ROWS, BLOCK_DIM // 2 if QUANTIZED else BLOCK_DIM), tl.float32)
    acc_odd = acc
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
        fetched = held[:, None] & is_dim
        k = tl.load(k_rows[:, None] + dim[None, :] * k_dim, mask=fetched, other=0.0)
        score = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * to_log2[:, None]
        if QUANTIZED:
            k_scale = k_scale_ptr + page * ks_batch + head * ks_head + slot * ks_position
            score *= tl.load(k_scale, mask=held, other=0.0).to(tl.float32)[None, :]
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
        if QUANTIZED:
            # Relative to the block's largest, so that no weight falls out of fp16's range.
            v_scale = v_scale_ptr + page * vs_batch + head * vs_head + slot * vs_position
            v_scale = tl.load(v_scale, mask=held, other=0.0).to(tl.float32)
            unit = tl.max(v_scale, 0)
            weight *= (v_scale / tl.where(unit == 0.0, 1.0, unit))[None, :]
            weight = weight.to(q.dtype)
            # Pairs of columns: turning 16-bit elements in shared memory is one instruction for many,
            # bytes go one by one.
            pair = tl.arange(0, BLOCK_DIM // 2)
            fetched = held[:, None] & (pair < HEAD_DIM // 2)[None, :]
            pairs = v_rows.to(tl.pointer_type(tl.int16), bitcast=True)
            v = tl.load(pairs[:, None] + pair[None, :], mask=fetched, other=0)
            even = v.to(tl.int8).to(k.dtype, bitcast=True).to(q.dtype)
            odd = (v >> 8).to(tl.int8).to(k.dtype, bitcast=True).to(q.dtype)
            acc = acc * shrink[:, None] + tl.dot(weight, even, input_precision="ieee") * unit
            acc_odd = acc_odd * shrink[:, None] + tl.dot(weight, odd, input_precision="ieee") * unit
        else:
            v = tl.load(v_rows[:, None] + dim[None, :] * v_dim, mask=fetched, other=0.0)
            acc *= shrink[:, None]
            acc = tl.dot(weight.to(v.dtype), v, acc, input_precision="ieee")

    if QUANTIZED:
        acc = tl.interleave(acc, acc_odd)
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    lse = tl.where(is_empty, float("-inf"), (largest + tl.log2(total)) * LN_2)
    out_row = (tl.program_id(1).to(tl.int64) * n_groups + group) * ROWS + row
    tl.store(lse_ptr + out_row, lse, mask=is_row)
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_row[:, None] * HEAD_DIM + dim[None, :], out, mask=within)
