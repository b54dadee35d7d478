"""The backward pass: dq, dk, dv by recomputation, a tile of keys at a time against all queries that see it.

Transposed throughout (rows are keys), so that weights and their gradients feed the products for dv
and dk from registers; for dq the gradients of the scores go through shared memory, where both
warpgroups' halves meet. dq is summed in fp32 over tiles of keys, in the order of the registers that
hold it (`dq_sums`).
"""

import math

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import _aggregate as aggregate

from peakward.lab.ops.flash_attention.hopper.descriptors import describe, describe_vectors
from peakward.lab.ops.flash_attention.hopper.dq_sums import add, rounded
from peakward.lab.ops.flash_attention.hopper.refusals import (
    DIFFERENTIATED,
    require,
    require_unordered,
)
from peakward.lab.ops.flash_attention.hopper.ring import barriers, ring, tiles_of
from peakward.lab.ops.flash_attention.hopper.row_terms import row_terms
from peakward.lab.ops.flash_attention.hopper.schedule import (
    announcements,
    draw,
    heads_at_once,
    place,
)
from peakward.lab.ops.flash_attention.hopper.settings import (
    KEYS,
    ROWS,
    kv_stages_for,
    n_programs,
    queries_for,
)
from peakward.lab.ops.flash_attention.hopper.softmax import packed, unpacked
from peakward.lab.ops.flash_attention.rule import Packing, Rule

LOG2E = math.log2(math.e)
LN2 = gl.constexpr(math.log(2))
STAGES = 2
"""Tiles of queries on their way."""


@aggregate
class Sizes:
    """What the kernel is compiled for."""

    causal: gl.constexpr
    queries: gl.constexpr
    keys: gl.constexpr
    rows: gl.constexpr
    d: gl.constexpr
    n_kv_heads: gl.constexpr
    group: gl.constexpr
    """Heads that share keys and values."""

    @gluon.constexpr_function
    def __init__(self, causal, queries, keys, rows, d, n_kv_heads, group):  # type: ignore[no-untyped-def]
        self.causal = gl.constexpr(causal)
        self.queries = gl.constexpr(queries)
        self.keys = gl.constexpr(keys)
        self.rows = gl.constexpr(rows)
        self.d = gl.constexpr(d)
        self.n_kv_heads = gl.constexpr(n_kv_heads)
        self.group = gl.constexpr(group)


@gluon.jit
def _first_block(block, q_len, k_len, sizes):  # type: ignore[no-untyped-def]
    """The first tile of queries of which any sees the tile of keys."""
    first = 0
    if sizes.causal:
        first = gl.maximum(0, block * sizes.keys - (k_len - q_len)) // sizes.queries
    return first


@gluon.jit
def _bring(  # type: ignore[no-untyped-def]
    q,
    dout,
    k,
    v,
    lse,
    delta,
    qs,
    douts,
    lses,
    deltas,
    ks,
    v_tiles,
    turns,
    counter,
    q_len,
    k_len,
    n_k_blocks,
    n_q_blocks,
    n_tiles,
    heads_at_once,
    n_all_heads,
    sizes,
):
    """One warp: draws tiles of keys, and has the copy engine fetch them and the queries in turn."""
    turn = 0
    step = 0
    index = gl.program_id(0)
    while index < n_tiles:
        # Early keys are seen by the most queries: what takes longest is started first.
        block, head = place(index, n_k_blocks, heads_at_once, n_all_heads)
        turns.announce(block, head, turn)
        batch = head // sizes.n_kv_heads
        kv_head = head % sizes.n_kv_heads
        first = _first_block(block, q_len, k_len, sizes)
        ks.wait_empty(turn)
        full = ks.filled(turn)
        mbarrier.expect(full, k.block_type.nbytes + v.block_type.nbytes)
        key = block * sizes.keys
        tma.async_copy_global_to_shared(k, [batch, kv_head, key, 0], full, ks.tile(turn))
        tma.async_copy_global_to_shared(
            v, [batch, kv_head, key, 0], full, v_tiles.index(turn % ks.n_tiles)
        )
        # The answer takes most of a microsecond: it comes while these tiles do.
        index = draw(counter)
        for member in range(sizes.group):
            own = kv_head * sizes.group + member
            for j in range(first, n_q_blocks):
                row = j * sizes.queries
                qs.wait_empty(step)
                full = qs.filled(step)
                mbarrier.expect(full, q.block_type.nbytes + lse.block_type.nbytes)
                tma.async_copy_global_to_shared(q, [batch, own, row, 0], full, qs.tile(step))
                tma.async_copy_global_to_shared(
                    lse, [batch, own, row], full, lses.index(step % qs.n_tiles)
                )
                douts.wait_empty(step)
                full = douts.filled(step)
                mbarrier.expect(full, dout.block_type.nbytes + delta.block_type.nbytes)
                tma.async_copy_global_to_shared(dout, [batch, own, row, 0], full, douts.tile(step))
                tma.async_copy_global_to_shared(
                    delta, [batch, own, row], full, deltas.index(step % qs.n_tiles)
                )
                step += 1
        turn += 1
    turns.announce(-1, 0, turn)


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
def _differentiate(  # type: ignore[no-untyped-def]
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
        first = _first_block(block, q_len, k_len, sizes)
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


@gluon.jit(
    do_not_specialize=[
        "scale", "q_len", "k_len", "n_k_blocks", "n_q_blocks", "n_tiles", "heads_at_once", "n_all_heads",
    ]
)  # fmt: skip
def _attention_backward(  # type: ignore[no-untyped-def]
    q,
    dout,
    k,
    v,
    lse,
    delta,
    dk,
    dv,
    dq_ptr,
    counter,
    scale,
    q_len,
    k_len,
    n_k_blocks,
    n_q_blocks,
    n_tiles,
    heads_at_once,
    n_all_heads,
    N_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    QUERIES: gl.constexpr,
    KEYS: gl.constexpr,
    ROWS: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    KV_STAGES: gl.constexpr,
):
    qs = ring(q, STAGES, 2)
    douts = ring(dout, STAGES, 2)
    lses = tiles_of(lse, STAGES)
    deltas = tiles_of(delta, STAGES)
    # Values come and go with the keys.
    ks = ring(k, KV_STAGES, 2)
    v_tiles = tiles_of(v, KV_STAGES)
    DSCORES: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, QUERIES], q.dtype)
    dscores_tile = gl.allocate_shared_memory(q.dtype, [KEYS, QUERIES], DSCORES)
    dscores_full = barriers(1, 2)
    dscores_empty = barriers(1, 2)
    out_tiles = tiles_of(dk, 4)
    turns = announcements(2)
    fence_async_shared()
    sizes = Sizes(CAUSAL, QUERIES, KEYS, ROWS, D, N_KV_HEADS, GROUP)
    bring = (
        q, dout, k, v, lse, delta, qs, douts, lses, deltas, ks, v_tiles, turns, counter,
        q_len, k_len, n_k_blocks, n_q_blocks, n_tiles, heads_at_once, n_all_heads, sizes,
    )  # fmt: skip
    differentiate = (
        dk, dv, dq_ptr, qs, douts, lses, deltas, ks, v_tiles, dscores_tile,
        dscores_full, dscores_empty, out_tiles, turns, scale, q_len, k_len, n_q_blocks, sizes,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_differentiate, (0,) + differentiate),
            (_differentiate, (1,) + differentiate),
            (_bring, bring),
        ],
        [4, 1],
        [240, 24],
    )


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    slopes: Tensor | None,
    rule: Rule,
    packing: Packing | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv, laid out as torch.empty_like of q, k and v.

    Raises:
        ValueError: what these kernels are not made for (`refusals`).
    """
    require(q, slopes, rule, packing, DIFFERENTIATED)
    require_unordered()
    batch, n_heads, q_len, d = q.shape
    n_kv_heads, k_len = k.shape[1:3]
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if q.numel() == 0 or k.numel() == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    queries = queries_for(d)
    n_q_blocks, n_k_blocks = triton.cdiv(q_len, queries), triton.cdiv(k_len, KEYS)
    lse2, delta = row_terms(out, dout, lse, dlse, n_q_blocks * queries)
    dq_sums = torch.zeros(
        batch, n_heads, n_q_blocks * queries, d, dtype=torch.float32, device=q.device
    )
    n_all_heads = batch * n_kv_heads
    n_tiles = n_k_blocks * n_all_heads
    group = n_heads // n_kv_heads
    most = n_programs(q.device)
    seen_bytes = 2 * q_len * d * q.element_size() * group
    _attention_backward[(min(most, n_tiles),)](
        describe("q", q, queries),
        describe("dout", dout, queries),
        describe("k", k, KEYS),
        describe("v", v, KEYS),
        describe_vectors(lse2, queries),
        describe_vectors(delta, queries),
        describe("dk", dk, ROWS),
        describe("dv", dv, ROWS),
        dq_sums,
        torch.zeros(1, dtype=torch.int32, device=q.device),
        rule.scale * LOG2E,
        q_len,
        k_len,
        n_k_blocks,
        n_q_blocks,
        n_tiles,
        heads_at_once(seen_bytes, n_all_heads, n_k_blocks, most, causal=rule.causal),
        n_all_heads,
        N_KV_HEADS=n_kv_heads,
        GROUP=group,
        CAUSAL=rule.causal,
        QUERIES=queries,
        KEYS=KEYS,
        ROWS=ROWS,
        D=d,
        STAGES=STAGES,
        KV_STAGES=kv_stages_for(d),
        num_warps=4,
    )
    rounded(dq_sums, dq, queries, rule.scale)
    return dq, dk, dv
