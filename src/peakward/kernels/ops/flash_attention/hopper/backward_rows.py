"""A warpgroup of a backward program: its rows, half of a tile of keys, against all queries that see it."""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from peakward.kernels.ops.flash_attention.hopper.backward_sizes import first_block, tile
from peakward.kernels.ops.flash_attention.hopper.dq_sums import add
from peakward.kernels.ops.flash_attention.hopper.softmax import packed, unpacked

LN2 = gl.constexpr(math.log(2))


@gluon.jit
def _seen(  # type: ignore[no-untyped-def]
    keys, j, q_len, k_len, sizes, PART: gl.constexpr, SCORES: gl.constexpr
):
    """Which of a part's queries see which keys: one comparison a weight."""
    first = gl.zeros([sizes.rows], gl.int32, layout=gl.SliceLayout(1, SCORES))
    if sizes.causal:
        first = keys - (k_len - q_len) - j * sizes.queries - PART * sizes.at_once
    first = gl.where(keys < k_len, first, sizes.at_once)
    queries = gl.arange(0, sizes.at_once, layout=gl.SliceLayout(0, SCORES))
    return queries[None, :] >= first[:, None]


@gluon.jit
def _scores(own, others, sizes, SCORES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Asks for the products of own keys with queries, or of own values with their results' gradients."""
    none = gl.zeros([sizes.rows, sizes.at_once], gl.float32, layout=SCORES)
    right = others.main.permute((1, 0))
    coming = warpgroup_mma(own.main, right, none, use_acc=False, is_async=True)
    if sizes.rest:
        coming = warpgroup_mma(own.rest, others.rest.permute((1, 0)), coming, is_async=True)
    return coming


@gluon.jit
def _added(left, right, sums, sums_rest, sizes, REST: gl.constexpr):  # type: ignore[no-untyped-def]
    """Asks for what weights, or their gradients, of some queries add to sums over all."""
    sums_coming = warpgroup_mma(left, right.main, sums, is_async=True)
    rest_coming = sums_rest
    if sizes.rest:
        LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=REST, k_width=2)
        left = gl.convert_layout(left, LEFT, assert_trivial=True)
        rest_coming = warpgroup_mma(left, right.rest, sums_rest, is_async=True)
    return sums_coming, rest_coming


@gluon.jit
def _of_queries(vectors, slot, PART: gl.constexpr, sizes, SCORES: gl.constexpr):  # type: ignore[no-untyped-def]
    """A part's figures, one a query, as its scores' columns have them."""
    vector = vectors.index(slot).reshape([sizes.queries])
    vector = vector.slice(PART * sizes.at_once, sizes.at_once, 0)
    return vector.load(gl.SliceLayout(0, SCORES))


@gluon.jit
def _step(  # type: ignore[no-untyped-def]
    dk,
    dv,
    dk_rest,
    dv_rest,
    j,
    step,
    keys,
    half_ptr,
    ks,
    v_tiles,
    rests,
    turn,
    qs,
    douts,
    lses,
    deltas,
    dscores_tile,
    dscores_full,
    dscores_empty,
    scale,
    q_len,
    k_len,
    sizes,
    WARPGROUP: gl.constexpr,
    SCORES: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Adds the contributions of a tile of queries to dk, dv and dq."""
    SUMS: gl.constexpr = dk.type.layout
    REST: gl.constexpr = dk_rest.type.layout
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=SUMS, k_width=2)
    # dq's tile is halved between the warpgroups along its longer side, 128: queries, or head_dim.
    ALONG_D: gl.constexpr = sizes.queries == sizes.rows
    gl.static_assert(sizes.main == 128 if ALONG_D else sizes.main == 64)
    DQ: gl.constexpr = SCORES if ALONG_D else SUMS
    DQ_COLUMNS: gl.constexpr = sizes.queries if ALONG_D else sizes.main
    PRODUCTS: gl.constexpr = 2 if sizes.rest else 1
    # A zero that the compiler does not know for one: else it computes the addresses of all
    # operands of all products ahead of the loop, and spills them (240 bytes a thread).
    zero = gl.inline_asm_elementwise(
        "mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    slot = turn % ks.n_tiles + zero
    k = tile(ks.tiles.index(slot), rests.k.index(slot), sizes.keys, sizes)
    v = tile(v_tiles.index(slot), rests.v.index(slot), sizes.keys, sizes)
    own_k = k.rows(WARPGROUP * sizes.rows, sizes.rows)
    own_v = v.rows(WARPGROUP * sizes.rows, sizes.rows)
    slot = step % qs.n_tiles
    q = tile(qs.tile(step), rests.q.index(slot), sizes.queries, sizes)
    dout = tile(douts.tile(step), rests.dout.index(slot), sizes.queries, sizes)
    qs.wait_full(step)
    scores = _scores(own_k, q.rows(0, sizes.at_once), sizes, SCORES)
    douts.wait_full(step)
    dweights = _scores(own_v, dout.rows(0, sizes.at_once), sizes, SCORES)
    for part in gl.static_range(sizes.parts):
        # Asked for after a first part's scores: its dweights. After a later one's: the part before's
        # share of dk too.
        scores = warpgroup_mma_wait(PRODUCTS if part == 0 else 2 * PRODUCTS, deps=[scores])
        lse = _of_queries(lses, step % qs.n_tiles, part, sizes, SCORES)
        weights = gl.exp2(scores * scale - lse[None, :])
        if MASKED:
            seen = _seen(keys, j, q_len, k_len, sizes, part, SCORES)
            weights = gl.where(seen, weights, 0.0)
        # Kept in 16 bits from here: in 32 they do not fit beside their gradients.
        pairs = packed(weights, q.main.dtype)
        dweights, pairs = warpgroup_mma_wait(0, deps=[dweights, pairs])
        left = unpacked(pairs, q.main.dtype, LEFT)
        dv, dv_rest = _added(
            left, dout.rows(part * sizes.at_once, sizes.at_once), dv, dv_rest, sizes, REST
        )
        if part + 1 < sizes.parts:
            more = q.rows((part + 1) * sizes.at_once, sizes.at_once)
            scores = _scores(own_k, more, sizes, SCORES)
        delta = _of_queries(deltas, step % qs.n_tiles, part, sizes, SCORES)
        rounded_weights = unpacked(pairs, q.main.dtype, SCORES).to(gl.float32)
        dscores = (rounded_weights * (dweights - delta[None, :])).to(q.main.dtype)
        if part == 0:
            mbarrier.wait(dscores_empty.index(0), (step & 1) ^ 1)
        own_dscores = dscores_tile.slice(WARPGROUP * sizes.rows, sizes.rows, 0)
        own_dscores.slice(part * sizes.at_once, sizes.at_once, 1).store(dscores)
        if part + 1 == sizes.parts:
            fence_async_shared()
            mbarrier.arrive(dscores_full.index(0), count=1)
        left = gl.convert_layout(dscores, LEFT)
        dk, dk_rest = _added(
            left, q.rows(part * sizes.at_once, sizes.at_once), dk, dk_rest, sizes, REST
        )
        if part + 1 < sizes.parts:
            more = dout.rows((part + 1) * sizes.at_once, sizes.at_once)
            dweights = _scores(own_v, more, sizes, SCORES)
    mbarrier.wait(dscores_full.index(0), step & 1)
    none = gl.zeros([sizes.rows, DQ_COLUMNS], gl.float32, layout=DQ)
    if ALONG_D:
        left = k.main.slice(WARPGROUP * sizes.rows, sizes.rows, 1).permute((1, 0))
        dq = warpgroup_mma(left, dscores_tile, none, use_acc=False, is_async=True)
    else:
        left = dscores_tile.slice(WARPGROUP * sizes.rows, sizes.rows, 1).permute((1, 0))
        dq = warpgroup_mma(left, k.main, none, use_acc=False, is_async=True)
    if sizes.rest:
        none = gl.zeros([sizes.rows, sizes.rest], gl.float32, layout=REST)
        dq_rest = warpgroup_mma(left, k.rest, none, use_acc=False, is_async=True)
        dv, dk, dv_rest, dk_rest = warpgroup_mma_wait(2, deps=[dv, dk, dv_rest, dk_rest])
    else:
        dv, dk = warpgroup_mma_wait(1, deps=[dv, dk])
    douts.release(step)
    qs.release(step)
    dq = warpgroup_mma_wait(0, deps=[dq])
    mbarrier.arrive(dscores_empty.index(0), count=1)
    add(dq, half_ptr, sizes.rows, DQ_COLUMNS, DQ)
    if sizes.rest:
        dq_rest = warpgroup_mma_wait(0, deps=[dq_rest])
        add(dq_rest, half_ptr + sizes.rows * sizes.main, sizes.rows, sizes.rest, REST)
    return dk, dv, dk_rest, dv_rest


@gluon.jit
def differentiate(  # type: ignore[no-untyped-def]
    WARPGROUP: gl.constexpr,
    dk_out,
    dv_out,
    dk_rest_out,
    dv_rest_out,
    dq_ptr,
    qs,
    douts,
    lses,
    deltas,
    ks,
    v_tiles,
    rests,
    dscores_tile,
    dscores_full,
    dscores_empty,
    out_tiles,
    turns,
    scale,
    q_len,
    k_len,
    n_q_blocks,
    sizes,
):
    """A warpgroup: its rows, half of the keys, of every tile that is announced."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.at_once, 16]
    )
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.main, 16]
    )
    REST: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.rest or 16, 16]
    )
    HALF: gl.constexpr = sizes.queries * (sizes.main + sizes.rest) // 2
    turn = 0
    step = 0
    block, head = turns.take(turn)
    while block >= 0:
        first = first_block(block, q_len, k_len, sizes)
        dk = gl.zeros([sizes.rows, sizes.main], gl.float32, layout=SUMS)
        dv = gl.zeros([sizes.rows, sizes.main], gl.float32, layout=SUMS)
        dk_rest = gl.zeros([sizes.rows, sizes.rest or 16], gl.float32, layout=REST)
        dv_rest = gl.zeros([sizes.rows, sizes.rest or 16], gl.float32, layout=REST)
        first_key = block * sizes.keys + WARPGROUP * sizes.rows
        keys = first_key + gl.arange(0, sizes.rows, layout=gl.SliceLayout(1, SCORES))
        # Tiles of queries before this one need the mask: all, where the keys end within the tile.
        whole = 0
        if sizes.causal:
            last_key = (block + 1) * sizes.keys - 1
            whole = (last_key - (k_len - q_len) + sizes.queries - 1) // sizes.queries
        whole = gl.where((block + 1) * sizes.keys > k_len, n_q_blocks, whole)
        ks.wait_full(turn)
        half_ptr = dq_ptr + ((head.to(gl.int64) * n_q_blocks + first) * 2 + WARPGROUP) * HALF
        cut = gl.minimum(gl.maximum(first, whole), n_q_blocks)
        # Two loops: a mask on a condition is computed on every tile, 256 of head dimension 64's 1,020
        # instructions.
        for j in range(first, cut):
            dk, dv, dk_rest, dv_rest = _step(
                dk, dv, dk_rest, dv_rest, j, step, keys, half_ptr, ks, v_tiles, rests, turn, qs, douts,
                lses, deltas, dscores_tile, dscores_full, dscores_empty, scale, q_len, k_len, sizes,
                WARPGROUP, SCORES, True,
            )  # fmt: skip
            step += 1
            half_ptr += 2 * HALF
        for j in range(cut, n_q_blocks):
            dk, dv, dk_rest, dv_rest = _step(
                dk, dv, dk_rest, dv_rest, j, step, keys, half_ptr, ks, v_tiles, rests, turn, qs, douts,
                lses, deltas, dscores_tile, dscores_full, dscores_empty, scale, q_len, k_len, sizes,
                WARPGROUP, SCORES, False,
            )  # fmt: skip
            step += 1
            half_ptr += 2 * HALF
        ks.release(turn)
        tma.store_wait(0)
        dv_tile = out_tiles.index(2 * WARPGROUP)
        dk_tile = out_tiles.index(2 * WARPGROUP + 1)
        dv_tile.reshape([sizes.rows, sizes.main]).store(dv.to(dv_tile.dtype))
        # The scale is in base 2 here, and dscores are by the natural exponential.
        dk_tile.reshape([sizes.rows, sizes.main]).store((dk * (scale * LN2)).to(dv_tile.dtype))
        if sizes.rest:
            dv_rest_tile = rests.out.index(2 * WARPGROUP)
            dk_rest_tile = rests.out.index(2 * WARPGROUP + 1)
            dv_rest_tile.reshape([sizes.rows, sizes.rest]).store(dv_rest.to(dv_tile.dtype))
            dk_scaled = (dk_rest * (scale * LN2)).to(dv_tile.dtype)
            dk_rest_tile.reshape([sizes.rows, sizes.rest]).store(dk_scaled)
        fence_async_shared()
        if sizes.rest:
            # Stored last, copied first: the barrier that the compiler puts between stands behind the
            # fence, for the main pieces too.
            at = [head // sizes.n_heads, head % sizes.n_heads, first_key, sizes.main]
            tma.async_copy_shared_to_global(dv_rest_out, at, dv_rest_tile)
            tma.async_copy_shared_to_global(dk_rest_out, at, dk_rest_tile)
        at = [head // sizes.n_heads, head % sizes.n_heads, first_key, 0]
        tma.async_copy_shared_to_global(dv_out, at, dv_tile)
        tma.async_copy_shared_to_global(dk_out, at, dk_tile)
        turn += 1
        block, head = turns.take(turn)
    tma.store_wait(0)
