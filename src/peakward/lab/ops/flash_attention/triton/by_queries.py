"""A program holds a block of queries and goes through the keys that they see: dq without atomics."""

import triton
import triton.language as tl

from peakward.lab.ops.flash_attention.triton.tiles import (
    LOG2_E,
    head_of,
    keys_of,
    load,
    place,
    sees,
    span,
    store,
)


@triton.jit
def _through_keys(  # type: ignore[no-untyped-def]
    state,
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
    """Adds keys `first` to `end` to `state`: dq in two parts."""
    dq1, dq2 = state
    batch, head = at
    VALID2: tl.constexpr = HEAD_DIM - D1
    for start in range(first, end, KEYS):
        k1 = load(
            keys[0], batch, head, start, k_len, row_strides[0], KEYS, D1, D1, MASKED, DESCRIPTORS
        )
        v1 = load(
            values[0], batch, head, start, k_len, row_strides[1], KEYS, D1, D1, MASKED, DESCRIPTORS
        )
        score = tl.dot(queries[0], k1.T, input_precision=PRECISION)
        dweight = tl.dot(douts[0], v1.T, input_precision=PRECISION)
        if D2 > 0:
            k2 = load(
                keys[1], batch, head, start, k_len, row_strides[0], KEYS, D2, VALID2, MASKED,
                DESCRIPTORS,
            )  # fmt: skip
            v2 = load(
                values[1], batch, head, start, k_len, row_strides[1], KEYS, D2, VALID2, MASKED,
                DESCRIPTORS,
            )  # fmt: skip
            score = tl.dot(queries[1], k2.T, score, input_precision=PRECISION)
            dweight = tl.dot(douts[1], v2.T, dweight, input_precision=PRECISION)
        key = start + tl.arange(0, KEYS)
        distance = position[:, None] - key[None, :]
        if slope_log2 is None:
            weight = tl.math.exp2(score * scale_log2 - rows[0][:, None])
        else:
            score = score * scale_log2 - slope_log2 * tl.abs(distance)
            weight = tl.math.exp2(score - rows[0][:, None])
        if MASKED:
            weight = tl.where(sees(distance, key[None, :], k_len, CAUSAL, WINDOW), weight, 0.0)
        dscore = (weight * (dweight - rows[1][:, None])).to(k1.dtype)
        dq1 = tl.dot(dscore, k1, dq1, input_precision=PRECISION)
        if D2 > 0:
            dq2 = tl.dot(dscore, k2, dq2, input_precision=PRECISION)
    return dq1, dq2


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
    VALID2: tl.constexpr = HEAD_DIM - D1
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
    keys = (
        head_of(k1, batch, kv_head, first_k, k_strides, DESCRIPTORS),
        head_of(k2, batch, kv_head, first_k, k_strides, DESCRIPTORS),
    )
    values = (
        head_of(v1, batch, kv_head, first_k, v_strides, DESCRIPTORS),
        head_of(v2, batch, kv_head, first_k, v_strides, DESCRIPTORS),
    )
    row_strides = (k_strides[2], v_strides[2])
    source = head_of(q1, batch, head, first_q, q_strides, DESCRIPTORS)
    q1 = load(source, batch, head, start, q_len, q_strides[2], QUERIES, D1, D1, True, DESCRIPTORS)
    source = head_of(dout1, batch, head, first_q, dout_strides, DESCRIPTORS)
    dout1 = load(
        source, batch, head, start, q_len, dout_strides[2], QUERIES, D1, D1, True, DESCRIPTORS
    )
    if D2 > 0:
        source = head_of(q2, batch, head, first_q, q_strides, DESCRIPTORS)
        q2 = load(
            source, batch, head, start, q_len, q_strides[2], QUERIES, D2, VALID2, True, DESCRIPTORS
        )
        source = head_of(dout2, batch, head, first_q, dout_strides, DESCRIPTORS)
        dout2 = load(
            source, batch, head, start, q_len, dout_strides[2], QUERIES, D2, VALID2, True,
            DESCRIPTORS,
        )  # fmt: skip
        dq2 = tl.zeros([QUERIES, D2], tl.float32)
    else:
        dq2 = 0.0
    row = start + tl.arange(0, QUERIES)
    base = batch.to(tl.int64) * lse_strides[0] + head.to(tl.int64) * lse_strides[1] + first_q
    # A query that is not there has no weight: exp2(-inf).
    lse_log2 = tl.load(lse_ptr + base + row, mask=row < q_len, other=float("inf")) * LOG2_E
    delta = tl.load(delta_ptr + base + row, mask=row < q_len, other=0.0)
    if slopes_ptr is None:
        slope_log2 = None
    else:
        slope_log2 = tl.load(slopes_ptr + head) * LOG2_E
    queries = (q1, q2)
    douts = (dout1, dout2)
    rows = (lse_log2, delta)
    at = (batch, kv_head)
    position = row + shift
    state = (tl.zeros([QUERIES, D1], tl.float32), dq2)
    first, full, partial, end = keys_of(start, k_len, shift, QUERIES, KEYS, CAUSAL, WINDOW)
    if WINDOW is not None:
        state = _through_keys(
            state, queries, douts, rows, keys, values, at, row_strides, position, k_len, first,
            full, scale_log2, slope_log2, True, CAUSAL, WINDOW, KEYS, D1, D2, HEAD_DIM, PRECISION,
            DESCRIPTORS,
        )  # fmt: skip
    state = _through_keys(
        state, queries, douts, rows, keys, values, at, row_strides, position, k_len, full,
        partial, scale_log2, slope_log2, False, CAUSAL, WINDOW, KEYS, D1, D2, HEAD_DIM, PRECISION,
        DESCRIPTORS,
    )  # fmt: skip
    dq1, dq2 = _through_keys(
        state, queries, douts, rows, keys, values, at, row_strides, position, k_len, partial,
        end, scale_log2, slope_log2, True, CAUSAL, WINDOW, KEYS, D1, D2, HEAD_DIM, PRECISION,
        DESCRIPTORS,
    )  # fmt: skip
    target = head_of(dq_ptr1, batch, head, first_q, dq_strides, False)
    store(target, dq1 * scale, start, q_len, dq_strides[2], QUERIES, D1, D1)
    if D2 > 0:
        target = head_of(dq_ptr2, batch, head, first_q, dq_strides, False)
        store(target, dq2 * scale, start, q_len, dq_strides[2], QUERIES, D2, VALID2)
