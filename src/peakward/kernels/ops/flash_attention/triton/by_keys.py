"""A program holds a block of keys and goes through the queries that see it: dk and dv."""

import triton
import triton.language as tl

from peakward.kernels.ops.flash_attention.triton.heads import (
    heads_of,
    inner,
    load_parts,
    plus_weighted,
    store_parts,
    times,
    zero_parts,
)
from peakward.kernels.ops.flash_attention.triton.tiles import LOG2_E, place, queries_of, sees, span


@triton.jit
def _through_queries(  # type: ignore[no-untyped-def]
    state,
    keys,
    values,
    queries,
    douts,
    rows,
    at,
    row_strides,
    key,
    k_len,
    q_len,
    first,
    end,
    scale_log2,
    slope_log2,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    QUERIES: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Adds queries `first` to `end` to `state`: (dv, dk), each in two parts."""
    dv, dk = state
    for start in range(first, end, QUERIES):
        row = start + tl.arange(0, QUERIES)
        q = load_parts(
            queries, at, start, q_len, row_strides[0], QUERIES, D1, D2, HEAD_DIM, MASKED,
            DESCRIPTORS,
        )  # fmt: skip
        # (keys, queries), from here on.
        score = inner(keys, q, D2, PRECISION)
        if MASKED:
            # A query that is not there has no weight: exp2(-inf).
            lse_log2 = tl.load(rows[0] + row, mask=row < q_len, other=float("inf")) * LOG2_E
            delta = tl.load(rows[1] + row, mask=row < q_len, other=0.0)
        else:
            lse_log2 = tl.load(rows[0] + row) * LOG2_E
            delta = tl.load(rows[1] + row)
        distance = (row + (k_len - q_len))[None, :] - key[:, None]
        if slope_log2 is None:
            weight = tl.math.exp2(score * scale_log2 - lse_log2[None, :])
        else:
            score = score * scale_log2 - slope_log2 * tl.abs(distance)
            weight = tl.math.exp2(score - lse_log2[None, :])
        if MASKED:
            weight = tl.where(sees(distance, key[:, None], k_len, CAUSAL, WINDOW), weight, 0.0)
        dout = load_parts(
            douts, at, start, q_len, row_strides[1], QUERIES, D1, D2, HEAD_DIM, MASKED, DESCRIPTORS
        )
        dweight = inner(values, dout, D2, PRECISION)
        dscore = (weight * (dweight - delta[None, :])).to(q[0].dtype)
        dv = plus_weighted(dv, weight.to(dout[0].dtype), dout, D2, PRECISION)
        dk = plus_weighted(dk, dscore, q, D2, PRECISION)
    return dv, dk


@triton.jit
def attention_by_keys(  # type: ignore[no-untyped-def]
    q1,
    q2,
    k1,
    k2,
    v1,
    v2,
    dout1,
    dout2,
    dk_ptr1,
    dk_ptr2,
    dv_ptr1,
    dv_ptr2,
    lse_ptr,
    delta_ptr,
    slopes_ptr,
    q_starts,
    k_starts,
    q_strides,
    k_strides,
    v_strides,
    dout_strides,
    dk_strides,
    dv_strides,
    lse_strides,
    n_kv_heads,
    n_batches,
    q_len,
    k_len,
    section,
    scale,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    VARLEN: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    # Early keys are seen by the most queries, and are started first.
    block, batch, kv_head = place(tl.cdiv(k_len, KEYS), n_kv_heads, n_batches, section)
    start = block * KEYS
    first_k, k_len = span(k_starts, batch, k_len, VARLEN)
    if VARLEN:
        if start >= k_len:
            return
    first_q, q_len = span(q_starts, batch, q_len, VARLEN)
    scale_log2 = scale * LOG2_E
    key = start + tl.arange(0, KEYS)
    at_kv = (batch, kv_head)
    source = heads_of(k1, k2, batch, kv_head, first_k, k_strides, DESCRIPTORS)
    keys = load_parts(
        source, at_kv, start, k_len, k_strides[2], KEYS, D1, D2, HEAD_DIM, True, DESCRIPTORS
    )
    source = heads_of(v1, v2, batch, kv_head, first_k, v_strides, DESCRIPTORS)
    values = load_parts(
        source, at_kv, start, k_len, v_strides[2], KEYS, D1, D2, HEAD_DIM, True, DESCRIPTORS
    )
    state = (zero_parts(KEYS, D1, D2), zero_parts(KEYS, D1, D2))
    first, full, partial, end = queries_of(
        start, q_len, k_len, k_len - q_len, QUERIES, KEYS, CAUSAL, WINDOW
    )
    for member in range(GROUP):
        head = kv_head * GROUP + member
        at = (batch, head)
        queries = heads_of(q1, q2, batch, head, first_q, q_strides, DESCRIPTORS)
        douts = heads_of(dout1, dout2, batch, head, first_q, dout_strides, DESCRIPTORS)
        base = batch.to(tl.int64) * lse_strides[0] + head.to(tl.int64) * lse_strides[1] + first_q
        rows = (lse_ptr + base, delta_ptr + base)
        if slopes_ptr is None:
            slope_log2 = None
        else:
            slope_log2 = tl.load(slopes_ptr + head) * LOG2_E
        state = _through_queries(
            state, keys, values, queries, douts, rows, at,
            (q_strides[2], dout_strides[2]), key, k_len, q_len, first, full, scale_log2,
            slope_log2, True, CAUSAL, WINDOW, QUERIES, D1, D2, HEAD_DIM, PRECISION, DESCRIPTORS,
        )  # fmt: skip
        state = _through_queries(
            state, keys, values, queries, douts, rows, at,
            (q_strides[2], dout_strides[2]), key, k_len, q_len, full, partial, scale_log2,
            slope_log2, False, CAUSAL, WINDOW, QUERIES, D1, D2, HEAD_DIM, PRECISION, DESCRIPTORS,
        )  # fmt: skip
        state = _through_queries(
            state, keys, values, queries, douts, rows, at,
            (q_strides[2], dout_strides[2]), key, k_len, q_len, partial, end, scale_log2,
            slope_log2, True, CAUSAL, WINDOW, QUERIES, D1, D2, HEAD_DIM, PRECISION, DESCRIPTORS,
        )  # fmt: skip
    dv, dk = state
    target = heads_of(dv_ptr1, dv_ptr2, batch, kv_head, first_k, dv_strides, False)
    store_parts(target, dv, start, k_len, dv_strides[2], KEYS, D1, D2, HEAD_DIM)
    target = heads_of(dk_ptr1, dk_ptr2, batch, kv_head, first_k, dk_strides, False)
    store_parts(target, times(dk, scale, D2), start, k_len, dk_strides[2], KEYS, D1, D2, HEAD_DIM)
