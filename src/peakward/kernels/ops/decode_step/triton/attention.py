"""Attention of a step's queries to the cache, with the join of its pieces in the same kernel."""

import triton
import triton.language as tl

from peakward.kernels.ops.decode_attention.triton.narrow import digits, first_of_two
from peakward.kernels.ops.decode_step.triton.kept import (
    LEAST_ROWS,
    loaded,
    scored,
    weighed,
    written,
)
from peakward.kernels.ops.decode_step.triton.stored import (
    THEN,
    bring_next,
    page_of,
    place_in,
    place_of,
)
from peakward.kernels.ops.dependent import bring, launch_the_next, wait_for_the_one_before


@triton.jit
def _asked(  # type: ignore[no-untyped-def]
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    table_ptr,
    room,
    sequence,
    kv,
    low,
    high,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    AHEAD: tl.constexpr,
    SCALES_AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Asks for the keys and values of the first AHEAD positions of a piece to be brought into the L2."""
    ITEM: tl.constexpr = k_ptr.dtype.element_ty.primitive_bitwidth // 8
    # Eight neighbouring positions of a head are one run, unless a page ends within them.
    RUN: tl.constexpr = 1 if PAGE_SIZE % 8 else 8
    for first in tl.static_range(0, AHEAD, 32 * WARPS * RUN):
        brought = low + first + tl.arange(0, 32 * WARPS) * RUN
        n = tl.minimum(tl.maximum(high - brought, 0), RUN)
        n = tl.where(brought < low + AHEAD, n, 0)
        begins = place_of(
            *(table_ptr, room, sequence, KV_HEADS, kv, brought, brought < high, PAGE_SIZE)
        )
        bring(k_ptr + begins * HEAD_DIM, n * (HEAD_DIM * ITEM))
        bring(v_ptr + begins * HEAD_DIM, n * (HEAD_DIM * ITEM))
        if SCALES_AHEAD:
            bring(k_scale_ptr + begins, tl.cdiv(n, 4) * 16)
            bring(v_scale_ptr + begins, tl.cdiv(n, 4) * 16)


@triton.jit
def _joined(  # type: ignore[no-untyped-def]
    parts_ptr,
    shares_ptr,
    pair,
    SPLITS: tl.constexpr,
    QUERIES: tl.constexpr,
    MEMBERS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """The pieces of a pair in their order, (MEMBERS, BLOCK_DIM)."""
    member = tl.arange(0, MEMBERS)
    is_member = member < QUERIES
    dim = tl.arange(0, BLOCK_DIM)
    within = is_member[:, None] & (dim < HEAD_DIM)[None, :]
    top = tl.full((MEMBERS,), float("-inf"), tl.float32)
    for piece in tl.static_range(SPLITS):
        slot = (pair * SPLITS + piece) * QUERIES + member
        share = tl.load(shares_ptr + 2 * slot, mask=is_member, other=0.0, cache_modifier=".cg")
        top = tl.maximum(top, share)
    acc = tl.zeros((MEMBERS, BLOCK_DIM), tl.float32)
    whole = tl.zeros((MEMBERS,), tl.float32)
    # Of many queries the pieces on their way all at once took more registers than there are.
    for piece in tl.range(0, SPLITS, loop_unroll_factor=2 if MEMBERS >= 64 else SPLITS):
        slot = (pair * SPLITS + piece) * QUERIES + member
        share = tl.load(shares_ptr + 2 * slot, mask=is_member, other=0.0, cache_modifier=".cg")
        share = tl.exp2(share - top)
        part = tl.load(shares_ptr + 2 * slot + 1, mask=is_member, other=1.0, cache_modifier=".cg")
        whole += share * part
        parts = parts_ptr + slot[:, None] * HEAD_DIM + dim[None, :]
        acc += share[:, None] * tl.load(parts, mask=within, other=0.0, cache_modifier=".cg")
    return acc / whole[:, None]


@triton.jit(do_not_specialize=THEN)
def decode_step_attention(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    position_ptr,
    parts_ptr,
    shares_ptr,
    arrived_ptr,
    out_ptr,
    table_ptr,
    then_ptr,
    then_parts,
    then_stride,
    then_bytes,
    room,
    scale_log2,
    NEW: tl.constexpr,
    NEWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    MEMBERS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    AHEAD: tl.constexpr,
    SCALES_AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """The queries that share keys, of GROUP heads of each of the NEW tokens of a sequence, to one of SPLITS
    pieces of them: parts (sequences, KV_HEADS, SPLITS, NEW · GROUP, HEAD_DIM) and the logarithms of their
    shares (…, NEW · GROUP), in fp32. The program that arrives last joins them into out (rows, heads,
    HEAD_DIM), in the order of the pieces, and sets its count back to 0. The first new token stands at the
    sequence's position, and each sees those before it.

    With scales keys and values are in int8, and rows of q have the new ones behind their queries, which are
    written first (see `kept`).

    The position is not the layers' work: it may be read before the wait.
    """
    launch_the_next(DEPENDENT)
    NARROW: tl.constexpr = k_scale_ptr is not None
    HEADS: tl.constexpr = KV_HEADS * GROUP
    ROW_HEADS: tl.constexpr = HEADS + 2 * KV_HEADS if NARROW else HEADS
    pair = tl.program_id(0)
    split = tl.program_id(1)
    length = tl.load(position_ptr + pair // KV_HEADS).to(tl.int32) + NEW
    # In whole sixteens, not blocks: a length just above a multiple of them leaves no piece without work.
    chunk = tl.cdiv(tl.cdiv(length, SPLITS), 16) * 16
    low = split * chunk
    high = tl.minimum(low + chunk, length)
    sequence, kv = pair // KV_HEADS, pair % KV_HEADS
    if AHEAD and NATIVE:
        _asked(
            *(k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, room, sequence, kv, low, high),
            *(KV_HEADS, HEAD_DIM, PAGE_SIZE, AHEAD, SCALES_AHEAD, WARPS),
        )
        program = pair + tl.num_programs(0) * split
        n_programs = tl.num_programs(0) * SPLITS
        bring_next(then_ptr, then_parts, then_stride, then_bytes, program, n_programs, 32 * WARPS)
    position = low + tl.arange(0, BLOCK)
    page = page_of(table_ptr, room, sequence, position, position < high, PAGE_SIZE)
    wait_for_the_one_before(DEPENDENT)

    if NARROW:
        if high > length - NEW:
            written(
                *(q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, room, sequence, kv),
                *(
                    length - NEW,
                    low,
                    high,
                    NEW,
                    NEWS,
                    KV_HEADS,
                    HEADS,
                    HEAD_DIM,
                    BLOCK_DIM,
                    PAGE_SIZE,
                ),
            )
        # All threads' stores come before all threads' loads.
        tl.debug_barrier()
    member = tl.arange(0, MEMBERS)
    dim = tl.arange(0, BLOCK_DIM)
    is_dim = (dim < HEAD_DIM)[None, :]
    is_member = member < NEW * GROUP
    within = is_member[:, None] & is_dim
    # The head of a query among those of its row, and its row.
    head = kv * GROUP + member % GROUP
    row = sequence * NEW + member // GROUP
    own = length - NEW + member // GROUP
    q_rows = (row * ROW_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    type_: tl.constexpr = q_ptr.dtype.element_ty
    q = tl.load(q_ptr + q_rows, mask=within, other=0.0, cache_modifier=".cg")
    factor, odd = scale_log2, 0.0
    acc = tl.zeros((MEMBERS, BLOCK_DIM), tl.float32)
    if NARROW:
        q, unit = digits(q)
        factor *= unit
        acc = tl.zeros((max(LEAST_ROWS, MEMBERS), BLOCK_DIM // 2), tl.float32)
        odd = acc
    largest = tl.full((MEMBERS,), float("-inf"), tl.float32)
    total = tl.zeros((MEMBERS,), tl.float32)
    for start in range(low, high, BLOCK):
        position = start + tl.arange(0, BLOCK)
        is_held = position < high
        place = place_in(page, room, sequence, KV_HEADS, kv, position, PAGE_SIZE)
        page = page_of(
            table_ptr, room, sequence, position + BLOCK, position + BLOCK < high, PAGE_SIZE
        )
        k, v, k_scale, v_scale = loaded(
            *(k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, place, is_held, HEAD_DIM, BLOCK_DIM)
        )
        score = scored(q, factor, k, k_scale)
        seen = is_held[None, :]
        if NEW > 1:
            seen = seen & (position[None, :] <= own[:, None])
        score = tl.where(seen, score, float("-inf"))
        raised = tl.maximum(largest, tl.max(score, 1))
        # Where a token sees nothing of a piece: minus infinity less itself would be NaN.
        shift = tl.where(raised == float("-inf"), 0.0, raised) if NEW > 1 else raised
        weight = tl.exp2(score - shift[:, None])
        shrink = tl.exp2(largest - shift)
        total = total * shrink + tl.sum(weight, 1)
        largest = raised
        acc, odd = weighed(weight, shrink, acc, odd, v, v_scale, type_)
    if NARROW:
        acc = tl.interleave(acc, odd)
        if MEMBERS < LEAST_ROWS:
            acc = first_of_two(acc)
    out = out_ptr + (row * HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    if SPLITS == 1:
        tl.store(out, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=within)
    else:
        slot = (pair * SPLITS + split) * (NEW * GROUP) + member
        tl.store(parts_ptr + slot[:, None] * HEAD_DIM + dim[None, :], acc, mask=within)
        tl.store(shares_ptr + 2 * slot, largest, mask=is_member)
        tl.store(shares_ptr + 2 * slot + 1, total, mask=is_member)
        # All threads' stores come before the count, and the count before all threads' loads.
        tl.debug_barrier()
        n_before = tl.atomic_add(arrived_ptr + pair, 1, sem="acq_rel")
        if n_before == SPLITS - 1:
            tl.debug_barrier()
            tl.store(arrived_ptr + pair, 0)
            acc = _joined(
                *(parts_ptr, shares_ptr, pair),
                *(SPLITS, NEW * GROUP, MEMBERS, HEAD_DIM, BLOCK_DIM),
            )
            tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=within)
