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

from peakward.lab.ops.flash_attention.hopper.backward_sizes import first_block
from peakward.lab.ops.flash_attention.hopper.dq_sums import add
from peakward.lab.ops.flash_attention.hopper.softmax import packed, unpacked

LN2 = gl.constexpr(math.log(2))


@gluon.jit
def _seen(keys, j, q_len, k_len, sizes, SCORES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Which of a tile's queries see which keys: one comparison a weight."""
    first = gl.zeros([sizes.rows], gl.int32, layout=gl.SliceLayout(1, SCORES))
    if sizes.causal:
        first = keys - (k_len - q_len) - j * sizes.queries
    first = gl.where(keys < k_len, first, sizes.queries)
    queries = gl.arange(0, sizes.queries, layout=gl.SliceLayout(0, SCORES))
    return queries[None, :] >= first[:, None]


@gluon.jit
def _step(  # type: ignore[no-untyped-def]
    dk,
    dv,
    j,
    step,
    keys,
    half_ptr,
    ks,
    v_tiles,
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
    """What a tile of queries adds to dk, dv and dq."""
    SUMS: gl.constexpr = dk.type.layout
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=SUMS, k_width=2)
    # dq's tile is halved between the warpgroups along its longer side, 128: queries, or head_dim.
    ALONG_D: gl.constexpr = sizes.queries == sizes.rows
    DQ: gl.constexpr = SCORES if ALONG_D else SUMS
    DQ_COLUMNS: gl.constexpr = sizes.queries if ALONG_D else sizes.d
    # A zero that the compiler does not know for one: else it computes the addresses of all
    # operands of all products ahead of the loop, and spills them (240 bytes a thread).
    zero = gl.inline_asm_elementwise(
        "mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    slot = turn % ks.n_tiles + zero
    k = ks.tiles.index(slot).reshape([sizes.keys, sizes.d])
    own_k = k.slice(WARPGROUP * sizes.rows, sizes.rows, 0)
    v = v_tiles.index(slot).reshape([sizes.keys, sizes.d])
    own_v = v.slice(WARPGROUP * sizes.rows, sizes.rows, 0)
    q = qs.tile(step).reshape([sizes.queries, sizes.d])
    dout = douts.tile(step).reshape([sizes.queries, sizes.d])
    none = gl.zeros([sizes.rows, sizes.queries], gl.float32, layout=SCORES)
    qs.wait_full(step)
    scores = warpgroup_mma(own_k, q.permute((1, 0)), none, use_acc=False, is_async=True)
    douts.wait_full(step)
    dweights = warpgroup_mma(own_v, dout.permute((1, 0)), none, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores])
    of_queries: gl.constexpr = gl.SliceLayout(0, SCORES)
    lse = lses.index(step % qs.n_tiles).reshape([sizes.queries]).load(of_queries)
    weights = gl.exp2(scores * scale - lse[None, :])
    if MASKED:
        weights = gl.where(_seen(keys, j, q_len, k_len, sizes, SCORES), weights, 0.0)
    # Kept in 16 bits from here: in 32 they do not fit beside their gradients.
    pairs = packed(weights, q.dtype)
    dweights, pairs = warpgroup_mma_wait(0, deps=[dweights, pairs])
    dv_coming = warpgroup_mma(unpacked(pairs, q.dtype, LEFT), dout, dv, is_async=True)
    delta = deltas.index(step % qs.n_tiles).reshape([sizes.queries]).load(of_queries)
    rounded_weights = unpacked(pairs, q.dtype, SCORES).to(gl.float32)
    dscores = (rounded_weights * (dweights - delta[None, :])).to(q.dtype)
    mbarrier.wait(dscores_empty.index(0), (step & 1) ^ 1)
    dscores_tile.slice(WARPGROUP * sizes.rows, sizes.rows, 0).store(dscores)
    fence_async_shared()
    mbarrier.arrive(dscores_full.index(0), count=1)
    dk_coming = warpgroup_mma(gl.convert_layout(dscores, LEFT), q, dk, is_async=True)
    mbarrier.wait(dscores_full.index(0), step & 1)
    none = gl.zeros([sizes.rows, DQ_COLUMNS], gl.float32, layout=DQ)
    if ALONG_D:
        left = k.slice(WARPGROUP * sizes.rows, sizes.rows, 1).permute((1, 0))
        dq = warpgroup_mma(left, dscores_tile, none, use_acc=False, is_async=True)
    else:
        left = dscores_tile.slice(WARPGROUP * sizes.rows, sizes.rows, 1).permute((1, 0))
        dq = warpgroup_mma(left, k, none, use_acc=False, is_async=True)
    dv, dk = warpgroup_mma_wait(1, deps=[dv_coming, dk_coming])
    douts.release(step)
    qs.release(step)
    dq = warpgroup_mma_wait(0, deps=[dq])
    mbarrier.arrive(dscores_empty.index(0), count=1)
    add(dq, half_ptr, sizes.rows, DQ_COLUMNS, DQ)
    return dk, dv


@gluon.jit
def differentiate(  # type: ignore[no-untyped-def]
    WARPGROUP: gl.constexpr,
    dk_out,
    dv_out,
    dq_ptr,
    qs,
    douts,
    lses,
    deltas,
    ks,
    v_tiles,
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
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.queries, 16]
    )
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.d, 16]
    )
    HALF: gl.constexpr = sizes.queries * sizes.d // 2
    turn = 0
    step = 0
    block, head = turns.take(turn)
    while block >= 0:
        first = first_block(block, q_len, k_len, sizes)
        dk = gl.zeros([sizes.rows, sizes.d], gl.float32, layout=SUMS)
        dv = gl.zeros([sizes.rows, sizes.d], gl.float32, layout=SUMS)
        first_key = block * sizes.keys + WARPGROUP * sizes.rows
        keys = first_key + gl.arange(0, sizes.rows, layout=gl.SliceLayout(1, SCORES))
        # Tiles of queries before this one need the mask: all, where the keys end within the tile.
        whole = 0
        if sizes.causal:
            last_key = (block + 1) * sizes.keys - 1
            whole = (last_key - (k_len - q_len) + sizes.queries - 1) // sizes.queries
        whole = gl.where((block + 1) * sizes.keys > k_len, n_q_blocks, whole)
        ks.wait_full(turn)
        q_head = head // sizes.n_kv_heads * sizes.n_kv_heads * sizes.group
        q_head += head % sizes.n_kv_heads * sizes.group
        half_ptr = dq_ptr + ((q_head.to(gl.int64) * n_q_blocks + first) * 2 + WARPGROUP) * HALF
        cut = gl.minimum(gl.maximum(first, whole), n_q_blocks)
        # Two loops: a mask on a condition is computed on every tile, 256 of head dimension 64's 1,020
        # instructions.
        for _ in range(sizes.group):
            for j in range(first, cut):
                dk, dv = _step(
                    dk, dv, j, step, keys, half_ptr, ks, v_tiles, turn, qs, douts, lses, deltas, dscores_tile,
                    dscores_full, dscores_empty, scale, q_len, k_len, sizes, WARPGROUP, SCORES, True,
                )  # fmt: skip
                step += 1
                half_ptr += 2 * HALF
            for j in range(cut, n_q_blocks):
                dk, dv = _step(
                    dk, dv, j, step, keys, half_ptr, ks, v_tiles, turn, qs, douts, lses, deltas, dscores_tile,
                    dscores_full, dscores_empty, scale, q_len, k_len, sizes, WARPGROUP, SCORES, False,
                )  # fmt: skip
                step += 1
                half_ptr += 2 * HALF
            half_ptr += first * 2 * HALF
        ks.release(turn)
        tma.store_wait(0)
        dv_tile = out_tiles.index(2 * WARPGROUP)
        dk_tile = out_tiles.index(2 * WARPGROUP + 1)
        dv_tile.reshape([sizes.rows, sizes.d]).store(dv.to(dv_tile.dtype))
        # The scale is in base 2 here, and dscores are by the natural exponential.
        dk_tile.reshape([sizes.rows, sizes.d]).store((dk * (scale * LN2)).to(dv_tile.dtype))
        fence_async_shared()
        at = [head // sizes.n_kv_heads, head % sizes.n_kv_heads, first_key, 0]
        tma.async_copy_shared_to_global(dv_out, at, dv_tile)
        tma.async_copy_shared_to_global(dk_out, at, dk_tile)
        turn += 1
        block, head = turns.take(turn)
    tma.store_wait(0)
