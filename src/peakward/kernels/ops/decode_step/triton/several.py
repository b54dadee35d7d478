"""The products of a layer for several rows of activations, each with what comes before and behind it.

Rows are those of sequences, NEW of each beside one another: row r is number r % NEW of the new tokens of
sequence r // NEW, whose first one stands at its position.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.decode_step.triton.chosen import LEAST, key_of
from peakward.kernels.ops.decode_step.triton.stored import THEN, bring_next, place_of, row_of
from peakward.kernels.ops.decode_step.triton.tiled import asked, multiplied
from peakward.kernels.ops.dependent import launch_the_next, wait_for_the_one_before


@triton.jit
def _begun(  # type: ignore[no-untyped-def]
    w_ptr,
    scale_ptr,
    first,
    n,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    launch_the_next(DEPENDENT)
    if AHEAD:
        asked(w_ptr, scale_ptr, tl.program_id(0), first, n, K, FORMAT, BLOCK, HALF, AHEAD, WARPS)
    wait_for_the_one_before(DEPENDENT)


@triton.jit
def _squares(squares_ptr, n_sums, SUMS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sums of squares of blocks of each row, (SUMS, ROWS)."""
    each = tl.arange(0, SUMS)[:, None]
    at = squares_ptr + each * ROWS + tl.arange(0, ROWS)[None, :]
    return tl.load(at, mask=each < n_sums, other=0.0, cache_modifier=".cg")


@triton.jit
def _factor(squares, eps, K: tl.constexpr):  # type: ignore[no-untyped-def]
    """The norm's factor of each row, (1, ROWS)."""
    return (1.0 / tl.sqrt_rn(tl.sum(squares, 0) / K + eps))[None, :]


@triton.jit
def decode_step_rows_embedded(  # type: ignore[no-untyped-def]
    ids_ptr,
    table_ptr,
    out_ptr,
    gain_ptr,
    scaled_ptr,
    squares_ptr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Rows of the table, (rows, WIDTH), with what the first norm takes. It starts the chain, and waits in
    full for what came before."""
    launch_the_next(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    token = tl.load(ids_ptr + row).to(tl.int64)
    value = tl.load(table_ptr + token * WIDTH + column, mask=inside, other=0.0)
    tl.store(out_ptr + row * WIDTH + column, value, mask=inside)
    wide = value.to(tl.float32)
    scaled = wide * tl.load(gain_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(scaled_ptr + row * WIDTH + column, scaled.to(value.dtype), mask=inside)
    tl.store(squares_ptr + tl.program_id(1) * ROWS + row, tl.sum(wide * wide, 0))


@triton.jit
def decode_step_rows_rotated(  # type: ignore[no-untyped-def]
    x_ptr,
    squares_ptr,
    w_ptr,
    scale_ptr,
    bias_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    m,
    n,
    n_sums,
    room,
    eps,
    n_heads,
    kv_heads,
    NEW: tl.constexpr,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Projection of normed rows, rotation: queries (rows, heads, 2 HALF) to q, keys and values into their
    caches at the rows' positions (see `place_of`), or without caches behind the queries of their row."""
    _begun(w_ptr, scale_ptr, 0, n, K, FORMAT, BLOCK, HALF, AHEAD, WARPS, DEPENDENT)
    block = tl.program_id(0)
    squares = _squares(squares_ptr, n_sums, SUMS, ROWS)
    row = tl.arange(0, ROWS)
    sequence = row // NEW
    position = tl.load(position_ptr + sequence, mask=row < m, other=0) + row % NEW
    pair = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
    head, at = (pair // HALF)[:, None], (pair % HALF)[:, None]
    is_pair = (pair < n // 2)[:, None] & (row < m)[None, :]
    turns = is_pair & (head < n_heads + kv_heads)
    angle = position[None, :] * HALF + at
    cos = tl.load(cos_ptr + angle, mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, mask=turns, other=0.0).to(tl.float32)
    total = multiplied(
        x_ptr, w_ptr, scale_ptr, block, 0, tl.cdiv(K, PARTS * COLUMNS), m, n,
        K, FORMAT, ROWS, BLOCK, COLUMNS, PARTS, STAGES, HALF,
    )  # fmt: skip
    total *= _factor(squares, eps, K)
    if HAS_BIAS:
        own = row_of(block, tl.arange(0, BLOCK), BLOCK, HALF)
        total += tl.load(bias_ptr + own, mask=own < n, other=0.0).to(tl.float32)[:, None]
    low, high = tl.split(total.reshape(2, BLOCK // 2, ROWS).permute(1, 2, 0))
    type_: tl.constexpr = q_ptr.dtype.element_ty
    first = (low * cos - high * sin).to(type_)
    second = (high * cos + low * sin).to(type_)
    row_heads = n_heads if k_ptr is not None else n_heads + 2 * kv_heads
    is_q = is_pair & (head < row_heads)
    q = q_ptr + (row[None, :] * row_heads + head) * (2 * HALF) + at
    tl.store(q, first, mask=is_q)
    tl.store(q + HALF, second, mask=is_q)
    if k_ptr is not None:
        kv = head - n_heads
        is_v = kv >= kv_heads
        kv = tl.where(is_v, kv - kv_heads, kv)
        place = place_of(
            *(table_ptr, room, sequence[None, :], kv_heads, kv, position[None, :]),
            (row < m)[None, :],
            PAGE_SIZE,
        )
        place = place * (2 * HALF) + at
        is_k = is_pair & (head >= n_heads) & ~is_v
        tl.store(k_ptr + place, first, mask=is_k)
        tl.store(k_ptr + place + HALF, second, mask=is_k)
        tl.store(v_ptr + place, first, mask=is_pair & is_v)
        tl.store(v_ptr + place + HALF, second, mask=is_pair & is_v)


@triton.jit(do_not_specialize=THEN)
def decode_step_rows_gated(  # type: ignore[no-untyped-def]
    x_ptr,
    squares_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    then_ptr,
    then_parts,
    then_stride,
    then_bytes,
    m,
    n,
    n_sums,
    eps,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Gate and up of normed rows, silu(gate) · up: (rows, HALF)."""
    _begun(w_ptr, scale_ptr, 0, n, K, FORMAT, BLOCK, HALF, AHEAD, WARPS, DEPENDENT)
    block = tl.program_id(0)
    squares = _squares(squares_ptr, n_sums, SUMS, ROWS)
    total = multiplied(
        x_ptr, w_ptr, scale_ptr, block, 0, tl.cdiv(K, PARTS * COLUMNS), m, n,
        K, FORMAT, ROWS, BLOCK, COLUMNS, PARTS, STAGES, HALF,
    )  # fmt: skip
    if AHEAD:
        bring_next(
            then_ptr, then_parts, then_stride, then_bytes, block, tl.num_programs(0), 32 * WARPS
        )
    total *= _factor(squares, eps, K)
    gate, up = tl.split(total.reshape(2, BLOCK // 2, ROWS).permute(1, 2, 0))
    column = (block * (BLOCK // 2) + tl.arange(0, BLOCK // 2))[:, None]
    row = tl.arange(0, ROWS)[None, :]
    gated = gate / (1.0 + tl.exp(-gate)) * up
    out = out_ptr + row * HALF + column
    tl.store(out, gated.to(out_ptr.dtype.element_ty), mask=(column < HALF) & (row < m))


@triton.jit(do_not_specialize=THEN)
def decode_step_rows_added(  # type: ignore[no-untyped-def]
    x_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    gain_ptr,
    scaled_ptr,
    squares_ptr,
    parts_ptr,
    arrived_ptr,
    then_ptr,
    then_parts,
    then_stride,
    then_bytes,
    m,
    n,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A product (rows, n) added to what out holds, the residual, with what the next norm takes: out times its
    gain, and the sums of out's squares by block, (blocks, ROWS).

    SPLITS programs share the columns of a block. Each leaves its sum in parts (blocks, SPLITS, BLOCK, ROWS);
    the one that arrives last adds them in their order, and sets its count back to 0.
    """
    block = tl.program_id(0)
    # By hand: tl.cdiv of triton 3.6 makes no constant that another one takes.
    STEPS: tl.constexpr = (K + PARTS * COLUMNS - 1) // (PARTS * COLUMNS)
    OWN: tl.constexpr = (STEPS + SPLITS - 1) // SPLITS
    if SPLITS == 1:
        low, high = 0, STEPS
    else:
        low = tl.program_id(1) * OWN
        high = tl.minimum(low + OWN, STEPS)
    first = low * (PARTS * COLUMNS)
    _begun(w_ptr, scale_ptr, first, n, K, FORMAT, BLOCK, 0, AHEAD, WARPS, DEPENDENT)
    row = tl.arange(0, ROWS)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = (column < n)[:, None] & (row < m)[None, :]
    at = row[None, :] * n + column[:, None]
    residual = tl.load(out_ptr + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    gain = tl.load(gain_ptr + column, mask=column < n, other=0.0).to(tl.float32)
    total = multiplied(
        x_ptr, w_ptr, scale_ptr, block, low, high, m, n,
        K, FORMAT, ROWS, BLOCK, COLUMNS, PARTS, STAGES, 0,
    )  # fmt: skip
    if AHEAD:
        program = block + tl.num_programs(0) * tl.program_id(1)
        n_programs = tl.num_programs(0) * SPLITS
        bring_next(then_ptr, then_parts, then_stride, then_bytes, program, n_programs, 32 * WARPS)
    is_last = True
    if SPLITS > 1:
        place = tl.arange(0, BLOCK)[:, None] * ROWS + row[None, :]
        parts = parts_ptr + block * (SPLITS * BLOCK * ROWS) + place
        tl.store(parts + tl.program_id(1) * (BLOCK * ROWS), total)
        # All threads' stores come before the count, and the count before all threads' loads.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived_ptr + block, 1, sem="acq_rel") == SPLITS - 1
    if is_last:
        if SPLITS > 1:
            tl.debug_barrier()
            tl.store(arrived_ptr + block, 0)
            total = tl.zeros((BLOCK, ROWS), tl.float32)
            for each in tl.static_range(SPLITS):
                total += tl.load(parts + each * (BLOCK * ROWS), cache_modifier=".cg")
        type_: tl.constexpr = out_ptr.dtype.element_ty
        rounded = (total + residual).to(type_)
        tl.store(out_ptr + at, rounded, mask=inside)
        wide = tl.where(inside, rounded.to(tl.float32), 0.0)
        tl.store(scaled_ptr + at, (wide * gain[:, None]).to(type_), mask=inside)
        tl.store(squares_ptr + block * ROWS + row, tl.sum(wide * wide, 0))


@triton.jit
def decode_step_rows_logits(  # type: ignore[no-untyped-def]
    x_ptr,
    squares_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    m,
    n,
    n_sums,
    eps,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    CHOOSES: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The output layer of normed rows, (rows, n). CHOOSES: out (rows, programs) takes the largest key (see
    `chosen`) of each program's logits instead."""
    _begun(w_ptr, scale_ptr, 0, n, K, FORMAT, BLOCK, 0, AHEAD, WARPS, DEPENDENT)
    block = tl.program_id(0)
    squares = _squares(squares_ptr, n_sums, SUMS, ROWS)
    total = multiplied(
        x_ptr, w_ptr, scale_ptr, block, 0, tl.cdiv(K, PARTS * COLUMNS), m, n,
        K, FORMAT, ROWS, BLOCK, COLUMNS, PARTS, STAGES, 0,
    )  # fmt: skip
    logits = (total * _factor(squares, eps, K)).to(x_ptr.dtype.element_ty)
    row = tl.arange(0, ROWS)
    column = block * BLOCK + tl.arange(0, BLOCK)
    if CHOOSES:
        key = key_of(logits.to(tl.float32), column[:, None])
        best = tl.max(tl.where((column < n)[:, None], key, LEAST), 0)
        tl.store(out_ptr + row.to(tl.int64) * tl.num_programs(0) + block, best, mask=row < m)
    else:
        inside = (column < n)[:, None] & (row < m)[None, :]
        tl.store(out_ptr + row[None, :].to(tl.int64) * n + column[:, None], logits, mask=inside)
