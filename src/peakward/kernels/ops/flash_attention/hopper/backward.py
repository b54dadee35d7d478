"""The backward pass: dq, dk, dv by recomputation, a tile of keys at a time against all queries that see it.

Transposed throughout (rows are keys), so that weights and their gradients feed the products for dv
and dk from registers; for dq the gradients of the scores go through shared memory, where both
warpgroups' halves meet. dq is summed in fp32 over tiles of keys, in the order of the registers that
hold it (`dq_sums`).

Head dimensions 80 and 96 come in two pieces, 64 columns and the rest, each with tiles and products of its
own: tiles must be powers of two, and 128 columns would fit neither shared memory nor the time.
"""

import math

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from peakward.kernels.ops.flash_attention.hopper.backward_loads import bring
from peakward.kernels.ops.flash_attention.hopper.backward_rows import differentiate
from peakward.kernels.ops.flash_attention.hopper.backward_sizes import Rests, Sizes
from peakward.kernels.ops.flash_attention.hopper.descriptors import describe, describe_vectors
from peakward.kernels.ops.flash_attention.hopper.dq_sums import rounded
from peakward.kernels.ops.flash_attention.hopper.refusals import require, require_unordered
from peakward.kernels.ops.flash_attention.hopper.ring import barriers, ring, tiles_of
from peakward.kernels.ops.flash_attention.hopper.row_terms import row_terms
from peakward.kernels.ops.flash_attention.hopper.schedule import (
    announcements,
    balanced,
    heads_at_once,
)
from peakward.kernels.ops.flash_attention.hopper.settings import (
    KEYS,
    ROWS,
    BackwardSettings,
    backward_settings_for,
    columns_of,
    n_programs,
)
from peakward.kernels.ops.flash_attention.rule import Packing, Rule
from peakward.kernels.ops.recording import launch

LOG2E = math.log2(math.e)
STAGES = 2
"""Tiles of queries on their way."""


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
    q_rest,
    dout_rest,
    k_rest,
    v_rest,
    dk_rest,
    dv_rest,
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
    N_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    QUERIES: gl.constexpr,
    AT_ONCE: gl.constexpr,
    KEYS: gl.constexpr,
    ROWS: gl.constexpr,
    MAIN: gl.constexpr,
    REST: gl.constexpr,
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
    if REST:
        rests = Rests(
            tiles_of(q_rest, STAGES),
            tiles_of(dout_rest, STAGES),
            tiles_of(k_rest, KV_STAGES),
            tiles_of(v_rest, KV_STAGES),
            tiles_of(dk_rest, 4),
        )
    else:
        rests = Rests(qs.tiles, douts.tiles, ks.tiles, v_tiles, out_tiles)
        q_rest, dout_rest, k_rest, v_rest, dk_rest, dv_rest = q, dout, k, v, dk, dv
    turns = announcements(2)
    fence_async_shared()
    sizes = Sizes(CAUSAL, QUERIES, AT_ONCE, KEYS, ROWS, MAIN, REST, N_HEADS, GROUP)
    brought = (
        q, dout, k, v, lse, delta, q_rest, dout_rest, k_rest, v_rest, qs, douts, lses, deltas, ks,
        v_tiles, rests, turns, counter, q_len, k_len, n_k_blocks, n_q_blocks, n_tiles, heads_at_once,
        n_all_heads, sizes,
    )  # fmt: skip
    rows = (
        dk, dv, dk_rest, dv_rest, dq_ptr, qs, douts, lses, deltas, ks, v_tiles, rests, dscores_tile,
        dscores_full, dscores_empty, out_tiles, turns, scale, q_len, k_len, n_q_blocks, sizes,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (differentiate, (0,) + rows),
            (differentiate, (1,) + rows),
            (bring, brought),
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
    settings: BackwardSettings | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv, laid out as torch.empty_like of q, k and v.

    Raises:
        ValueError: what these kernels are not made for (`refusals`).
    """
    require(q, slopes, rule, packing)
    require_unordered()
    batch, n_heads, q_len, d = q.shape
    n_kv_heads, k_len = k.shape[1:3]
    dq = torch.empty_like(q)
    if q.numel() == 0 or k.numel() == 0:
        return dq.zero_(), torch.zeros_like(k), torch.zeros_like(v)
    group = n_heads // n_kv_heads
    dk, dv = (torch.empty_like(each) if group == 1 else _apart(each, group) for each in (k, v))
    chosen = settings or backward_settings_for(d)
    queries = chosen.queries
    n_q_blocks, n_k_blocks = triton.cdiv(q_len, queries), triton.cdiv(k_len, KEYS)
    dq_sums = lse.new_empty(batch, n_heads, n_q_blocks * queries, d)
    counter = lse.new_empty(1, dtype=torch.int32)
    lse2, delta = row_terms(out, dout, lse, dlse, dq_sums, counter)
    n_all_heads = batch * n_heads
    n_tiles = n_k_blocks * n_all_heads
    most = n_programs(q.device)
    main, rest = columns_of(d)
    operands = (
        ("q", q, queries),
        ("dout", dout, queries),
        ("k", k, KEYS),
        ("v", v, KEYS),
        ("dk", dk, ROWS),
        ("dv", dv, ROWS),
    )
    mains = [describe(*each, main) for each in operands]
    rests = [describe(*each, rest) if rest else None for each in operands]
    launch(
        _attention_backward,
        (min(most, n_tiles),),
        *mains[:4],
        describe_vectors(lse2, queries),
        describe_vectors(delta, queries),
        *mains[4:],
        *rests,
        dq_sums,
        counter,
        rule.scale * LOG2E,
        q_len,
        k_len,
        n_k_blocks,
        n_q_blocks,
        n_tiles,
        heads_at_once(0, n_all_heads, least=balanced(n_k_blocks, most)),
        n_all_heads,
        N_HEADS=n_heads,
        GROUP=group,
        CAUSAL=rule.causal,
        QUERIES=queries,
        AT_ONCE=chosen.at_once,
        KEYS=KEYS,
        ROWS=ROWS,
        MAIN=main,
        REST=rest,
        STAGES=STAGES,
        KV_STAGES=chosen.kv_stages,
        num_warps=4,
        launch_pdl=True,
    )
    rounded(dq_sums, dq, queries, rule.scale)
    if group == 1:
        return dq, dk, dv
    return dq, _together(dk, k), _together(dv, v)


def _apart(shared: Tensor, group: int) -> Tensor:
    """Uninitialised gradients of keys or values, those of each head that shares them apart."""
    batch, n_kv_heads, k_len, d = shared.shape
    return shared.new_empty(batch, n_kv_heads * group, k_len, d)


def _together(apart: Tensor, shared: Tensor) -> Tensor:
    """Their sums, laid out as torch.empty_like of the shared."""
    gradient = torch.empty_like(shared)
    return torch.sum(apart.unflatten(1, (shared.shape[1], -1)), 2, out=gradient)
