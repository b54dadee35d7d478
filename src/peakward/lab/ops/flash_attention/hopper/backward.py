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
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from peakward.lab.ops.flash_attention.hopper.backward_loads import bring
from peakward.lab.ops.flash_attention.hopper.backward_rows import differentiate
from peakward.lab.ops.flash_attention.hopper.backward_sizes import Sizes
from peakward.lab.ops.flash_attention.hopper.descriptors import describe, describe_vectors
from peakward.lab.ops.flash_attention.hopper.dq_sums import rounded
from peakward.lab.ops.flash_attention.hopper.refusals import (
    DIFFERENTIATED,
    require,
    require_unordered,
)
from peakward.lab.ops.flash_attention.hopper.ring import barriers, ring, tiles_of
from peakward.lab.ops.flash_attention.hopper.row_terms import row_terms
from peakward.lab.ops.flash_attention.hopper.schedule import announcements, heads_at_once
from peakward.lab.ops.flash_attention.hopper.settings import (
    KEYS,
    ROWS,
    kv_stages_for,
    n_programs,
    queries_for,
)
from peakward.lab.ops.flash_attention.rule import Packing, Rule

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
    brought = (
        q, dout, k, v, lse, delta, qs, douts, lses, deltas, ks, v_tiles, turns, counter,
        q_len, k_len, n_k_blocks, n_q_blocks, n_tiles, heads_at_once, n_all_heads, sizes,
    )  # fmt: skip
    rows = (
        dk, dv, dq_ptr, qs, douts, lses, deltas, ks, v_tiles, dscores_tile,
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
