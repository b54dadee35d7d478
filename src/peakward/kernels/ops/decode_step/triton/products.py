"""The products of a layer, each with what comes before and behind it in one kernel."""

import triton
import triton.language as tl

from peakward.kernels.ops.decode_step.triton.chosen import LEAST, key_of
from peakward.kernels.ops.decode_step.triton.held import bits_of, held
from peakward.kernels.ops.decode_step.triton.stored import (
    THEN,
    bring_next,
    place_of,
    prefetch,
    row_of,
)
from peakward.kernels.ops.decode_step.triton.summed import first_tiles, summed
from peakward.kernels.ops.dependent import launch_the_next, wait_for_the_one_before


@triton.jit
def _begun(  # type: ignore[no-untyped-def]
    x_ptr,
    gain_ptr,
    w_ptr,
    scale_ptr,
    n,
    eps,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PER_WORD: tl.constexpr,
    LANES: tl.constexpr,
    CHUNKS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    NORMED: tl.constexpr,
    AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Asks for a product's first weights, waits for the kernel before, and holds x or its norm: the first
    tiles, and what `held` returns."""
    first = tl.program_id(0)
    for ahead in tl.static_range(AHEAD):
        block = first + ahead * tl.num_programs(0)
        prefetch(w_ptr, block, n, K, FORMAT, PER_WORD, BLOCK, HALF, 32 * WARPS)
    tiles = first_tiles(
        *(w_ptr, scale_ptr, first, n, K, FORMAT, PER_WORD, LANES, DEPTH, BLOCK, HALF, NATIVE)
    )
    gains = bits_of(gain_ptr, K, PER_WORD, LANES, CHUNKS) if NORMED else ()
    gain_type: tl.constexpr = (gain_ptr if NORMED else x_ptr).dtype.element_ty
    wait_for_the_one_before(DEPENDENT)
    x, factor = held(
        *(x_ptr, gains, gain_type, eps, K, FORMAT, PER_WORD, LANES, CHUNKS, NORMED, NATIVE)
    )
    return tiles, x, factor


@triton.jit
def decode_step_rotated(  # type: ignore[no-untyped-def]
    x_ptr,
    gain_ptr,
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
    n,
    room,
    eps,
    n_heads,
    kv_heads,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PER_WORD: tl.constexpr,
    HALF: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    CHUNKS: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
    STAYS_AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Norm, projection, rotation: queries (heads, 2 HALF) to q, keys and values into their caches at the
    position (see `place_of`), or without caches behind the queries."""
    launch_the_next(DEPENDENT)
    step = tl.num_programs(0)
    n_blocks = tl.cdiv(n, BLOCK)
    tiles, x, factor = _begun(
        *(x_ptr, gain_ptr, w_ptr, scale_ptr, n, eps, K, FORMAT, PER_WORD, LANES, CHUNKS, DEPTH),
        *(BLOCK, HALF, True, AHEAD, WARPS, DEPENDENT, NATIVE),
    )
    position = tl.load(position_ptr)
    for block in range(tl.program_id(0), n_blocks, step):
        pair = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        head, at = pair // HALF, pair % HALF
        is_pair = pair < n // 2
        turns = is_pair & (head < n_heads + kv_heads)
        angle = position * HALF + at
        cos = tl.load(cos_ptr + angle, mask=turns, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle, mask=turns, other=0.0).to(tl.float32)
        if STAYS_AHEAD:
            prefetch(w_ptr, block + AHEAD * step, n, K, FORMAT, PER_WORD, BLOCK, HALF, 32 * WARPS)
        total, tiles = summed(
            tiles, x, factor, w_ptr, scale_ptr, block, block + step, n,
            x_ptr.dtype.element_ty, K, FORMAT, PER_WORD, LANES,
            CHUNKS, DEPTH, BLOCK, HALF, NATIVE,
        )  # fmt: skip
        if HAS_BIAS:
            own = row_of(block, tl.arange(0, BLOCK), BLOCK, HALF)
            total += tl.load(bias_ptr + own, mask=own < n, other=0.0).to(tl.float32)
        low, high = tl.split(total.reshape(2, BLOCK // 2).trans())
        type_: tl.constexpr = q_ptr.dtype.element_ty
        first = (low * cos - high * sin).to(type_)
        second = (high * cos + low * sin).to(type_)
        row_heads = n_heads if k_ptr is not None else n_heads + 2 * kv_heads
        is_q = is_pair & (head < row_heads)
        q = q_ptr + head * (2 * HALF) + at
        tl.store(q, first, mask=is_q)
        tl.store(q + HALF, second, mask=is_q)
        if k_ptr is not None:
            kv = head - n_heads
            is_v = kv >= kv_heads
            kv = tl.where(is_v, kv - kv_heads, kv)
            place = place_of(table_ptr, room, 0, kv_heads, kv, position, True, PAGE_SIZE)
            place = place * (2 * HALF) + at
            is_k = is_pair & (head >= n_heads) & ~is_v
            tl.store(k_ptr + place, first, mask=is_k)
            tl.store(k_ptr + place + HALF, second, mask=is_k)
            tl.store(v_ptr + place, first, mask=is_pair & is_v)
            tl.store(v_ptr + place + HALF, second, mask=is_pair & is_v)


@triton.jit(do_not_specialize=THEN)
def decode_step_gated(  # type: ignore[no-untyped-def]
    x_ptr,
    gain_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    then_ptr,
    then_parts,
    then_stride,
    then_bytes,
    n,
    eps,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PER_WORD: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    CHUNKS: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
    STAYS_AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Norm, gate and up, silu(gate) · up: (HALF,)."""
    launch_the_next(DEPENDENT)
    step = tl.num_programs(0)
    n_blocks = tl.cdiv(n, BLOCK)
    tiles, x, factor = _begun(
        *(x_ptr, gain_ptr, w_ptr, scale_ptr, n, eps, K, FORMAT, PER_WORD, LANES, CHUNKS, DEPTH),
        *(BLOCK, HALF, True, AHEAD, WARPS, DEPENDENT, NATIVE),
    )
    for block in range(tl.program_id(0), n_blocks, step):
        if STAYS_AHEAD:
            prefetch(w_ptr, block + AHEAD * step, n, K, FORMAT, PER_WORD, BLOCK, HALF, 32 * WARPS)
        if NATIVE:
            if block + step >= n_blocks:
                bring_next(
                    then_ptr,
                    then_parts,
                    then_stride,
                    then_bytes,
                    tl.program_id(0),
                    step,
                    32 * WARPS,
                )
        total, tiles = summed(
            tiles, x, factor, w_ptr, scale_ptr, block, block + step, n,
            x_ptr.dtype.element_ty, K, FORMAT, PER_WORD, LANES,
            CHUNKS, DEPTH, BLOCK, HALF, NATIVE,
        )  # fmt: skip
        gate, up = tl.split(total.reshape(2, BLOCK // 2).trans())
        column = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        out = out_ptr + column
        inside = column < HALF
        gated = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(out, gated.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=THEN)
def decode_step_product(  # type: ignore[no-untyped-def]
    x_ptr,
    gain_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    then_ptr,
    then_parts,
    then_stride,
    then_bytes,
    n,
    eps,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PER_WORD: tl.constexpr,
    NORMED: tl.constexpr,
    ADDS: tl.constexpr,
    CHOOSES: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    CHUNKS: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
    STAYS_AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """A product (n,), of the norm of x where NORMED; ADDS: added to what out holds, the residual. CHOOSES:
    out (programs,) takes the largest key (see `chosen`) of each program's part of the product instead."""
    launch_the_next(DEPENDENT)
    type_: tl.constexpr = x_ptr.dtype.element_ty
    step = tl.num_programs(0)
    n_blocks = tl.cdiv(n, BLOCK)
    tiles, x, factor = _begun(
        *(x_ptr, gain_ptr, w_ptr, scale_ptr, n, eps, K, FORMAT, PER_WORD, LANES, CHUNKS, DEPTH),
        *(BLOCK, 0, NORMED, AHEAD, WARPS, DEPENDENT, NATIVE),
    )
    best = tl.full((BLOCK,), LEAST, tl.int64)
    for block in range(tl.program_id(0), n_blocks, step):
        column = block * BLOCK + tl.arange(0, BLOCK)
        out = out_ptr + column
        inside = column < n
        if ADDS:
            residual = tl.load(out, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
        if STAYS_AHEAD:
            prefetch(w_ptr, block + AHEAD * step, n, K, FORMAT, PER_WORD, BLOCK, 0, 32 * WARPS)
        if NATIVE:
            if block + step >= n_blocks:
                bring_next(
                    then_ptr,
                    then_parts,
                    then_stride,
                    then_bytes,
                    tl.program_id(0),
                    step,
                    32 * WARPS,
                )
        total, tiles = summed(
            tiles, x, factor, w_ptr, scale_ptr, block, block + step, n,
            x_ptr.dtype.element_ty, K, FORMAT, PER_WORD, LANES,
            CHUNKS, DEPTH, BLOCK, 0, NATIVE,
        )  # fmt: skip
        if CHOOSES:
            # Of logits as they would be stored, so that equal ones are those that are equal there.
            key = key_of(total.to(type_).to(tl.float32), column)
            best = tl.maximum(best, tl.where(inside, key, LEAST))
        else:
            if ADDS:
                total += residual
            tl.store(out, total.to(out_ptr.dtype.element_ty), mask=inside)
    if CHOOSES:
        tl.store(out_ptr + tl.program_id(0), tl.max(best, 0))


@triton.jit
def decode_step_embedded(  # type: ignore[no-untyped-def]
    ids_ptr, table_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    """Rows of the table, (rows, WIDTH). It starts the chain, and waits in full for what came before."""
    launch_the_next(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids_ptr + row).to(tl.int64)
    value = tl.load(table_ptr + token * WIDTH + column, mask=column < WIDTH, other=0.0)
    tl.store(out_ptr + row * WIDTH + column, value, mask=column < WIDTH)
