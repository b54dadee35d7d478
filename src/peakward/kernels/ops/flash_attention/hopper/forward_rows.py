"""A warpgroup of a forward program: its rows of every tile, against all keys that they see.

It asks for the scores of the next tile of keys and for this one's share of the result at once, and
takes the softmax of those scores while the tensor cores are at the latter (FlashAttention-3,
algorithm 2). Blocks that a mask cuts come first; the rest are taken without mask arithmetic.
"""

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

from peakward.kernels.ops.flash_attention.hopper.forward_sizes import n_blocks
from peakward.kernels.ops.flash_attention.hopper.softmax import (
    exponentials,
    masked,
    packed,
    unpacked,
)

LN2 = gl.constexpr(math.log(2))


@gluon.jit
def _scores(q, ks, step, sizes, SCORES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Asks for the products of the rows with a tile of keys."""
    none = gl.zeros([sizes.rows, sizes.keys], gl.float32, layout=SCORES)
    k = ks.tile(step).reshape([sizes.keys, sizes.d])
    if sizes.rest:
        main = k.slice(0, sizes.main, 1).permute((1, 0))
        rest = k.slice(sizes.main, sizes.rest, 1).permute((1, 0))
        coming = warpgroup_mma(q.slice(0, sizes.main, 1), main, none, use_acc=False, is_async=True)
        coming = warpgroup_mma(q.slice(sizes.main, sizes.rest, 1), rest, coming, is_async=True)
    else:
        coming = warpgroup_mma(q, k.permute((1, 0)), none, use_acc=False, is_async=True)
    return coming


@gluon.jit
def _weighted(weights, vs, step, out, rest, sizes, WEIGHTS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Asks for what a tile of values adds to the result."""
    v = vs.tile(step).reshape([sizes.keys, sizes.d])
    left = unpacked(weights, v.dtype, WEIGHTS)
    if sizes.rest:
        out_coming = warpgroup_mma(left, v.slice(0, sizes.main, 1), out, is_async=True)
        LEFT: gl.constexpr = gl.DotOperandLayout(
            operand_index=0, parent=rest.type.layout, k_width=2
        )
        left = gl.convert_layout(left, LEFT, assert_trivial=True)
        rest_coming = warpgroup_mma(left, v.slice(sizes.main, sizes.rest, 1), rest, is_async=True)
    else:
        out_coming = warpgroup_mma(left, v, out, is_async=True)
        rest_coming = rest
    return out_coming, rest_coming


@gluon.jit
def _wait_weighted(out_coming, rest_coming, sizes):  # type: ignore[no-untyped-def]
    if sizes.rest:
        out, rest = warpgroup_mma_wait(0, deps=[out_coming, rest_coming])
    else:
        out = warpgroup_mma_wait(0, deps=[out_coming])
        rest = rest_coming
    return out, rest


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
    rest,
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
        scores_coming = _scores(q, ks, step + 1, sizes, SCORES)
        vs.wait_full(step)
        out_coming, rest_coming = _weighted(weights, vs, step, out, rest, sizes, WEIGHTS)
        mbarrier.arrive(my_turn.index((WARPGROUP + 1) % sizes.warpgroups), count=1)
        # What was asked for after them is one product with the values, or two.
        scores = warpgroup_mma_wait(2 if sizes.rest else 1, deps=[scores_coming])
        ks.release(step + 1)
        if MASKED:
            first_key = (count - 1 - j) * sizes.keys
            scores = masked(scores, first_row, first_key, q_len, k_len, sizes, SCORES)
        maximum, weights32, total, shrink = exponentials(scores, maximum, total, scale, MASKED)
        out, rest = _wait_weighted(out_coming, rest_coming, sizes)
        vs.release(step)
        out = out * gl.convert_layout(shrink, gl.SliceLayout(1, out.type.layout))[:, None]
        if sizes.rest:
            rest = rest * gl.convert_layout(shrink, gl.SliceLayout(1, rest.type.layout))[:, None]
        weights = packed(weights32, q.dtype)
        step += 1
    return step, asked, out, rest, maximum, total, weights


@gluon.jit
def _finish(  # type: ignore[no-untyped-def]
    out,
    rest,
    maximum,
    total,
    out_ptr,
    lse_ptr,
    out_tile,
    head,
    first_row,
    q_len,
    n_heads,
    sizes,
    SCORES: gl.constexpr,
):
    """Writes the rows' results and log-sum-exp."""
    inverse = gl.where(total == 0.0, 0.0, 1.0 / total)
    rows = first_row + gl.arange(0, sizes.rows, layout=gl.SliceLayout(1, SCORES))
    lse = (maximum + gl.log2(total)) * LN2
    gl.store(lse_ptr + head.to(gl.int64) * q_len + rows, lse, mask=rows < q_len)
    out = out * gl.convert_layout(inverse, gl.SliceLayout(1, out.type.layout))[:, None]
    tma.store_wait(0)
    tile = out_tile.reshape([sizes.rows, sizes.d])
    if sizes.rest:
        rest = rest * gl.convert_layout(inverse, gl.SliceLayout(1, rest.type.layout))[:, None]
        tile.slice(0, sizes.main, 1).store(out.to(tile.dtype))
        tile.slice(sizes.main, sizes.rest, 1).store(rest.to(tile.dtype))
    else:
        tile.store(out.to(tile.dtype))
    fence_async_shared()
    place = [head // n_heads, head % n_heads, first_row, 0]
    tma.async_copy_shared_to_global(out_ptr, place, out_tile)


@gluon.jit
def _n_cut(count, first_row, q_len, k_len, sizes):  # type: ignore[no-untyped-def]
    """Tiles, the first at least, in which some row of the warpgroup does not see some key."""
    if sizes.causal:
        whole = gl.minimum(k_len, first_row + 1 + k_len - q_len) // sizes.keys
        whole = gl.minimum(count, gl.maximum(0, whole))
    else:
        whole = k_len // sizes.keys
    return gl.maximum(1, count - whole)


@gluon.jit
def attend(  # type: ignore[no-untyped-def]
    WARPGROUP: gl.constexpr,
    out_ptr,
    lse_ptr,
    qs,
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
    """Its rows of every tile that is announced."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.keys, 16]
    )
    OUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.main, 16]
    )
    REST: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sizes.rest or 16, 16]
    )
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    turn = 0
    asked = 0
    step = 0
    block, head = turns.take(turn)
    while block >= 0:
        own = turn * sizes.warpgroups + WARPGROUP
        q = qs.tile(own).reshape([sizes.rows, sizes.d])
        count = n_blocks(block, q_len, k_len, sizes)
        first_row = (block * sizes.warpgroups + WARPGROUP) * sizes.rows
        out = gl.zeros([sizes.rows, sizes.main], gl.float32, layout=OUT)
        rest = gl.zeros([sizes.rows, sizes.rest or 16], gl.float32, layout=REST)
        cut = _n_cut(count, first_row, q_len, k_len, sizes)
        qs.wait_full(own)
        ks.wait_full(step)
        scores = warpgroup_mma_wait(0, deps=[_scores(q, ks, step, sizes, SCORES)])
        ks.release(step)
        maximum = gl.full([sizes.rows], float("-inf"), gl.float32, layout=gl.SliceLayout(1, SCORES))
        total = gl.zeros([sizes.rows], gl.float32, layout=gl.SliceLayout(1, SCORES))
        first_key = (count - 1) * sizes.keys
        scores = masked(scores, first_row, first_key, q_len, k_len, sizes, SCORES)
        maximum, weights32, total, _ = exponentials(scores, maximum, total, scale, True)
        weights = packed(weights32, q.dtype)
        step, asked, out, rest, maximum, total, weights = _attend_to(
            1, cut, count, step, asked, my_turn, q, out, rest, maximum, total, weights, ks, vs,
            scale, first_row, q_len, k_len, sizes, True, WARPGROUP, SCORES, WEIGHTS,
        )  # fmt: skip
        step, asked, out, rest, maximum, total, weights = _attend_to(
            cut, count, count, step, asked, my_turn, q, out, rest, maximum, total, weights, ks, vs,
            scale, first_row, q_len, k_len, sizes, False, WARPGROUP, SCORES, WEIGHTS,
        )  # fmt: skip
        qs.release(own)
        vs.wait_full(step)
        out_coming, rest_coming = _weighted(weights, vs, step, out, rest, sizes, WEIGHTS)
        out, rest = _wait_weighted(out_coming, rest_coming, sizes)
        vs.release(step)
        step += 1
        _finish(
            out, rest, maximum, total, out_ptr, lse_ptr, out_tiles.index(WARPGROUP), head, first_row, q_len,
            n_heads, sizes, SCORES,
        )  # fmt: skip
        turn += 1
        block, head = turns.take(turn)
    tma.store_wait(0)
