"""The forward pass: out and log-sum-exp, a tile of queries at a time against all keys that it sees.

A warpgroup asks for the scores of the next tile of keys and for this one's share of the result at
once, and takes the softmax of those scores while the tensor cores are at the latter (FlashAttention-3,
algorithm 2). Blocks that a mask cuts come first; the rest are taken without mask arithmetic.
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

from peakward.lab.ops.flash_attention.hopper.descriptors import describe
from peakward.lab.ops.flash_attention.hopper.refusals import require
from peakward.lab.ops.flash_attention.hopper.ring import barriers, ring, tiles_of
from peakward.lab.ops.flash_attention.hopper.schedule import announcements, heads_at_once, place
from peakward.lab.ops.flash_attention.hopper.settings import (
    KEYS,
    ROWS,
    ForwardSettings,
    forward_settings_for,
    n_programs,
)
from peakward.lab.ops.flash_attention.rule import Packing, Rule

LOG2E = math.log2(math.e)
LN2 = gl.constexpr(math.log(2))


@aggregate
class Sizes:
    """What the kernel is compiled for."""

    causal: gl.constexpr
    keys: gl.constexpr
    rows: gl.constexpr
    d: gl.constexpr
    warpgroups: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, causal, keys, rows, d, warpgroups):  # type: ignore[no-untyped-def]
        self.causal = gl.constexpr(causal)
        self.keys = gl.constexpr(keys)
        self.rows = gl.constexpr(rows)
        self.d = gl.constexpr(d)
        self.warpgroups = gl.constexpr(warpgroups)


@gluon.jit
def _n_blocks(block, q_len, k_len, sizes):  # type: ignore[no-untyped-def]
    """Tiles of keys that any query of the block sees."""
    end = k_len
    if sizes.causal:
        queries = sizes.rows * sizes.warpgroups
        end = gl.minimum(k_len, (block + 1) * queries + k_len - q_len)
    return gl.maximum(0, (end + sizes.keys - 1) // sizes.keys)


@gluon.jit
def _bring(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    q_tiles,
    q_full,
    q_empty,
    ks,
    vs,
    turns,
    counter,
    q_len,
    k_len,
    n_heads,
    group,
    n_q_blocks,
    n_tiles,
    heads_at_once,
    n_all_heads,
    sizes,
):
    """One warp: draws tiles, and has the copy engine fetch what they need. Last keys come first."""
    turn = 0
    step = 0
    index = gl.program_id(0)
    while index < n_tiles:
        # Late queries see the most keys: what takes longest is started first.
        block, head = place(index, n_q_blocks, heads_at_once, n_all_heads)
        block = n_q_blocks - 1 - block
        turns.announce(block, head, turn)
        index = gl.num_programs(0) + gl.atomic_add(counter, 1)
        batch = head // n_heads
        own = head % n_heads
        count = _n_blocks(block, q_len, k_len, sizes)
        for i in gl.static_range(sizes.warpgroups):
            mbarrier.wait(q_empty.index(i), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(i), q.block_type.nbytes)
            row = (block * sizes.warpgroups + i) * sizes.rows
            tma.async_copy_global_to_shared(
                q, [batch, own, row, 0], q_full.index(i), q_tiles.index(i)
            )
        for j in range(0, count):
            first_key = (count - 1 - j) * sizes.keys
            ks.wait_empty(step)
            mbarrier.expect(ks.filled(step), k.block_type.nbytes)
            tma.async_copy_global_to_shared(
                k, [batch, own // group, first_key, 0], ks.filled(step), ks.tile(step)
            )
            vs.wait_empty(step)
            mbarrier.expect(vs.filled(step), v.block_type.nbytes)
            tma.async_copy_global_to_shared(
                v, [batch, own // group, first_key, 0], vs.filled(step), vs.tile(step)
            )
            step += 1
        turn += 1
    turns.announce(-1, 0, turn)


@gluon.jit
def _masked(  # type: ignore[no-untyped-def]
    scores,
    first_row,
    first_key,
    q_len,
    k_len,
    sizes,
    LAYOUT: gl.constexpr,
):
    """Minus infinity where a row must not see a key, or there is none."""
    keys = first_key + gl.arange(0, sizes.keys, layout=gl.SliceLayout(0, LAYOUT))
    seen = (keys < k_len)[None, :]
    if sizes.causal:
        rows = (
            first_row + gl.arange(0, sizes.rows, layout=gl.SliceLayout(1, LAYOUT)) + (k_len - q_len)
        )
        seen = seen & (keys[None, :] <= rows[:, None])
    return gl.where(seen, scores, float("-inf"))


@gluon.jit
def _exponentials(scores, maximum, total, scale, MASKED: gl.constexpr):  # type: ignore[no-untyped-def]
    """The online softmax, in base 2: new maxima, exponentials, sums, and what earlier ones shrink by."""
    maximum_now = gl.maximum(maximum, gl.max(scores, 1) * scale)
    if MASKED:
        # A row that has seen no key yet: infinity minus infinity would be no number.
        safe = gl.where(maximum_now == float("-inf"), 0.0, maximum_now)
    else:
        safe = maximum_now
    shrink = gl.exp2(maximum - safe)
    weights = gl.exp2(scores * scale - safe[:, None])
    total = total * shrink + gl.sum(weights, 1)
    return maximum_now, weights, total, shrink


@gluon.jit
def _attend_to(  # type: ignore[no-untyped-def]
    start,
    end,
    count,
    step,
    asked,
    my_turn,
    q,
    out,
    maximum,
    total,
    weights,
    ks,
    vs,
    scale,
    first_row,
    q_len,
    k_len,
    sizes,
    MASKED: gl.constexpr,
    WARPGROUP: gl.constexpr,
    SCORES: gl.constexpr,
    WEIGHTS: gl.constexpr,
):
    """Tiles `start` to `end` of the keys, each with the weights of the tile before it at hand."""
    for j in range(start, end):
        ks.wait_full(step + 1)
        # Warpgroups ask for products in turns: while one takes exponentials, another multiplies.
        mbarrier.wait(my_turn.index(WARPGROUP), (asked & 1) ^ (1 if WARPGROUP == 0 else 0))
        asked += 1
        none = gl.zeros([sizes.rows, sizes.keys], gl.float32, layout=SCORES)
        k = ks.tile(step + 1).reshape([sizes.keys, sizes.d])
        scores_coming = warpgroup_mma(q, k.permute((1, 0)), none, use_acc=False, is_async=True)
        vs.wait_full(step)
        v = vs.tile(step).reshape([sizes.keys, sizes.d])
        out_coming = warpgroup_mma(weights, v, out, is_async=True)
        mbarrier.arrive(my_turn.index((WARPGROUP + 1) % sizes.warpgroups), count=1)
        scores = warpgroup_mma_wait(1, deps=[scores_coming])
        ks.release(step + 1)
        if MASKED:
            first_key = (count - 1 - j) * sizes.keys
            scores = _masked(scores, first_row, first_key, q_len, k_len, sizes, SCORES)
        maximum, weights32, total, shrink = _exponentials(scores, maximum, total, scale, MASKED)
        out = warpgroup_mma_wait(0, deps=[out_coming])
        vs.release(step)
        out = out * gl.convert_layout(shrink, gl.SliceLayout(1, out.type.layout))[:, None]
        weights = gl.convert_layout(weights32.to(v.dtype), WEIGHTS)
        step += 1
    return step, asked, out, maximum, total, weights


@gluon.jit
def _attend(  # type: ignore[no-untyped-def]
    WARPGROUP: gl.constexpr,
    out_ptr,
    lse_ptr,
    q_tiles,
    q_full,
    q_empty,
    out_tiles,
    ks,
    vs,
    my_turn,
    turns,
    scale,
    q_len,
    k_len,
    n_heads,
    sizes,
):
    """A warpgroup: its rows of every tile that is announced."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.keys, 16]
    )
    OUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.d, 16]
    )
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    q = q_tiles.index(WARPGROUP).reshape([sizes.rows, sizes.d])
    turn = 0
    asked = 0
    step = 0
    block, head = turns.take(turn)
    while block >= 0:
        count = _n_blocks(block, q_len, k_len, sizes)
        first_row = (block * sizes.warpgroups + WARPGROUP) * sizes.rows
        out = gl.zeros([sizes.rows, sizes.d], gl.float32, layout=OUT)
        maximum = gl.full([sizes.rows], float("-inf"), gl.float32, layout=gl.SliceLayout(1, SCORES))
        total = gl.zeros([sizes.rows], gl.float32, layout=gl.SliceLayout(1, SCORES))
        mbarrier.wait(q_full.index(WARPGROUP), turn & 1)
        if count > 0:
            # Of these no mask cuts any: each row of the warpgroup sees every key.
            if sizes.causal:
                whole = gl.minimum(k_len, first_row + 1 + k_len - q_len) // sizes.keys
                whole = gl.minimum(count, gl.maximum(0, whole))
            else:
                whole = k_len // sizes.keys
            cut = gl.maximum(1, count - whole)
            ks.wait_full(step)
            none = gl.zeros([sizes.rows, sizes.keys], gl.float32, layout=SCORES)
            k = ks.tile(step).reshape([sizes.keys, sizes.d])
            scores = warpgroup_mma(q, k.permute((1, 0)), none, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, deps=[scores])
            ks.release(step)
            first_key = (count - 1) * sizes.keys
            scores = _masked(scores, first_row, first_key, q_len, k_len, sizes, SCORES)
            maximum, weights32, total, _ = _exponentials(scores, maximum, total, scale, True)
            weights = gl.convert_layout(weights32.to(q.dtype), WEIGHTS)
            step, asked, out, maximum, total, weights = _attend_to(
                1, cut, count, step, asked, my_turn, q, out, maximum, total, weights, ks, vs,
                scale, first_row, q_len, k_len, sizes, True, WARPGROUP, SCORES, WEIGHTS,
            )  # fmt: skip
            step, asked, out, maximum, total, weights = _attend_to(
                cut, count, count, step, asked, my_turn, q, out, maximum, total, weights, ks, vs,
                scale, first_row, q_len, k_len, sizes, False, WARPGROUP, SCORES, WEIGHTS,
            )  # fmt: skip
            mbarrier.arrive(q_empty.index(WARPGROUP), count=1)
            vs.wait_full(step)
            out = warpgroup_mma(
                weights, vs.tile(step).reshape([sizes.keys, sizes.d]), out, is_async=True
            )
            out = warpgroup_mma_wait(0, deps=[out])
            vs.release(step)
            step += 1
        else:
            mbarrier.arrive(q_empty.index(WARPGROUP), count=1)
        inverse = gl.where(total == 0.0, 0.0, 1.0 / total)
        rows = first_row + gl.arange(0, sizes.rows, layout=gl.SliceLayout(1, SCORES))
        lse = (maximum + gl.log2(total)) * LN2
        gl.store(lse_ptr + head.to(gl.int64) * q_len + rows, lse, mask=rows < q_len)
        out = out * gl.convert_layout(inverse, gl.SliceLayout(1, OUT))[:, None]
        tma.store_wait(0)
        out_tile = out_tiles.index(WARPGROUP)
        out_tile.reshape([sizes.rows, sizes.d]).store(out.to(q.dtype))
        fence_async_shared()
        place = [head // n_heads, head % n_heads, first_row, 0]
        tma.async_copy_shared_to_global(out_ptr, place, out_tile)
        turn += 1
        block, head = turns.take(turn)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "scale",
        "q_len",
        "k_len",
        "n_heads",
        "group",
        "n_q_blocks",
        "n_tiles",
        "heads_at_once",
        "n_all_heads",
    ]
)
def _attention_forward(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    lse,
    counter,
    scale,
    q_len,
    k_len,
    n_heads,
    group,
    n_q_blocks,
    n_tiles,
    heads_at_once,
    n_all_heads,
    CAUSAL: gl.constexpr,
    KEYS: gl.constexpr,
    ROWS: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    q_tiles = tiles_of(q, WARPGROUPS)
    out_tiles = tiles_of(out, WARPGROUPS)
    ks = ring(k, STAGES, WARPGROUPS)
    vs = ring(v, STAGES, WARPGROUPS)
    q_full = barriers(WARPGROUPS, 1)
    q_empty = barriers(WARPGROUPS, 1)
    my_turn = barriers(WARPGROUPS, 1)
    turns = announcements(WARPGROUPS)
    fence_async_shared()
    sizes = Sizes(CAUSAL, KEYS, ROWS, D, WARPGROUPS)
    bring = (
        q, k, v, q_tiles, q_full, q_empty, ks, vs, turns, counter, q_len, k_len, n_heads, group, n_q_blocks,
        n_tiles, heads_at_once, n_all_heads, sizes,
    )  # fmt: skip
    attend = (
        out, lse, q_tiles, q_full, q_empty, out_tiles, ks, vs, my_turn, turns, scale, q_len, k_len, n_heads,
        sizes,
    )  # fmt: skip
    if WARPGROUPS == 2:
        gl.warp_specialize(
            [(_attend, (0,) + attend), (_attend, (1,) + attend), (_bring, bring)],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_attend, (0,) + attend),
                (_attend, (1,) + attend),
                (_attend, (2,) + attend),
                (_bring, bring),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor | None,
    rule: Rule,
    packing: Packing | None = None,
    settings: ForwardSettings | None = None,
) -> tuple[Tensor, Tensor]:
    """out, laid out as torch.empty_like(q), and lse of (batch, heads, q_len) in fp32.

    Raises:
        ValueError: what these kernels are not made for (`refusals`).
    """
    require(q, slopes, rule, packing)
    batch, n_heads, q_len, d = q.shape
    n_kv_heads, k_len = k.shape[1:3]
    out = torch.empty_like(q)
    lse = torch.empty(batch, n_heads, q_len, dtype=torch.float32, device=q.device)
    if q.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(-math.inf)
    chosen = settings or forward_settings_for(d, k_len, causal=rule.causal)
    n_q_blocks = triton.cdiv(q_len, ROWS * chosen.warpgroups)
    n_all_heads = batch * n_heads
    n_tiles = n_q_blocks * n_all_heads
    kv_bytes = 2 * k_len * d * k.element_size()
    _attention_forward[(min(n_programs(q.device), n_tiles),)](
        describe("q", q, ROWS),
        describe("k", k, KEYS),
        describe("v", v, KEYS),
        describe("out", out, ROWS),
        lse,
        torch.zeros(1, dtype=torch.int32, device=q.device),
        rule.scale * LOG2E,
        q_len,
        k_len,
        n_heads,
        n_heads // n_kv_heads,
        n_q_blocks,
        n_tiles,
        heads_at_once(kv_bytes * n_kv_heads // n_heads, n_all_heads),
        n_all_heads,
        CAUSAL=rule.causal,
        KEYS=KEYS,
        ROWS=ROWS,
        D=d,
        STAGES=chosen.stages,
        WARPGROUPS=chosen.warpgroups,
        REGISTERS=chosen.registers,
        num_warps=4,
    )
    return out, lse
