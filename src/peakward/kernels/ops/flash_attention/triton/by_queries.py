"""A program holds a block of queries and goes through the keys that they see: dq without atomics."""

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
from peakward.kernels.ops.flash_attention.triton.tiles import LOG2_E, keys_of, place, sees, span


@triton.jit
def _through_keys(  # type: ignore[no-untyped-def]
    dq,
    queries,
    douts,
    rows,
    keys,
    values,
    at,
    row_strides,
    position,
    k_len,
    first,
    end,
    scale_log2,
    slope_log2,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    KEYS: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Adds keys `first` to `end` to `dq`, in two parts."""
    for start in range(first, end, KEYS):
        k = load_parts(
            keys, at, start, k_len, row_strides[0], KEYS, D1, D2, HEAD_DIM, MASKED, DESCRIPTORS
        )
        v = load_parts(
            values, at, start, k_len, row_strides[1], KEYS, D1, D2, HEAD_DIM, MASKED, DESCRIPTORS
        )
        score = inner(queries, k, D2, PRECISION)
        dweight = inner(douts, v, D2, PRECISION)
        key = start + tl.arange(0, KEYS)
        distance = position[:, None] - key[None, :]
        if slope_log2 is None:
            weight = tl.math.exp2(score * scale_log2 - rows[0][:, None])
        else:
            score = score * scale_log2 - slope_log2 * tl.abs(distance)
            weight = tl.math.exp2(score - rows[0][:, None])
        if MASKED:
            weight = tl.where(sees(distance, key[None, :], k_len, CAUSAL, WINDOW), weight, 0.0)
        dscore = (weight * (dweight - rows[1][:, None])).to(k[0].dtype)
        dq = plus_weighted(dq, dscore, k, D2, PRECISION)
    return dq


@triton.jit
def attention_by_queries(  # type: ignore[no-untyped-def]
    q1,
    q2,
    k1,
    k2,
    v1,
    v2,
    dout1,
    dout2,
    dq_ptr1,
    dq_ptr2,
    lse_ptr,
    delta_ptr,
    slopes_ptr,
    q_starts,
    k_starts,
    q_strides,
    k_strides,
    v_strides,
    dout_strides,
    dq_strides,
    lse_strides,
    n_heads,
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
    n_blocks = tl.cdiv(q_len, QUERIES)
    block, batch, head = place(n_blocks, n_heads, n_batches, section)
    start = (n_blocks - 1 - block) * QUERIES
    first_q, q_len = span(q_starts, batch, q_len, VARLEN)
    if VARLEN:
        if start >= q_len:
            return
    first_k, k_len = span(k_starts, batch, k_len, VARLEN)
    shift = k_len - q_len
    scale_log2 = scale * LOG2_E
    kv_head = head // GROUP
    keys = heads_of(k1, k2, batch, kv_head, first_k, k_strides, DESCRIPTORS)
    values = heads_of(v1, v2, batch, kv_head, first_k, v_strides, DESCRIPTORS)
    row_strides = (k_strides[2], v_strides[2])
    at_q = (batch, head)
    source = heads_of(q1, q2, batch, head, first_q, q_strides, DESCRIPTORS)
    queries = load_parts(
        source, at_q, start, q_len, q_strides[2], QUERIES, D1, D2, HEAD_DIM, True, DESCRIPTORS
    )
    source = heads_of(dout1, dout2, batch, head, first_q, dout_strides, DESCRIPTORS)
    douts = load_parts(
        source, at_q, start, q_len, dout_strides[2], QUERIES, D1, D2, HEAD_DIM, True, DESCRIPTORS
    )
    row = start + tl.arange(0, QUERIES)
    base = batch.to(tl.int64) * lse_strides[0] + head.to(tl.int64) * lse_strides[1] + first_q
    # A query that is not there has no weight: exp2(-inf).
    lse_log2 = tl.load(lse_ptr + base + row, mask=row < q_len, other=float("inf")) * LOG2_E
    delta = tl.load(delta_ptr + base + row, mask=row < q_len, other=0.0)
    if slopes_ptr is None:
        slope_log2 = None
    else:
        slope_log2 = tl.load(slopes_ptr + head) * LOG2_E
    rows = (lse_log2, delta)
    at = (batch, kv_head)
    position = row + shift
    dq = zero_parts(QUERIES, D1, D2)
    first, full, partial, end = keys_of(start, k_len, shift, QUERIES, KEYS, CAUSAL, WINDOW)
    if WINDOW is not None:
        dq = _through_keys(
            dq, queries, douts, rows, keys, values, at, row_strides, position, k_len, first,
            full, scale_log2, slope_log2, True, CAUSAL, WINDOW, KEYS, D1, D2, HEAD_DIM, PRECISION,
            DESCRIPTORS,
        )  # fmt: skip
    dq = _through_keys(
        dq, queries, douts, rows, keys, values, at, row_strides, position, k_len, full,
        partial, scale_log2, slope_log2, False, CAUSAL, WINDOW, KEYS, D1, D2, HEAD_DIM, PRECISION,
        DESCRIPTORS,
    )  # fmt: skip
    dq = _through_keys(
        dq, queries, douts, rows, keys, values, at, row_strides, position, k_len, partial,
        end, scale_log2, slope_log2, True, CAUSAL, WINDOW, KEYS, D1, D2, HEAD_DIM, PRECISION,
        DESCRIPTORS,
    )  # fmt: skip
    target = heads_of(dq_ptr1, dq_ptr2, batch, head, first_q, dq_strides, False)
    store_parts(
        target, times(dq, scale, D2), start, q_len, dq_strides[2], QUERIES, D1, D2, HEAD_DIM
    )
