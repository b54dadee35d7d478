"""The forward pass: a program holds a block of queries and goes through the keys that they see."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.flash_attention.rule import Packing, Rule
from peakward.kernels.ops.flash_attention.triton.heads import (
    heads_of,
    inner,
    load_parts,
    plus_weighted,
    store_parts,
    times,
    zero_parts,
)
from peakward.kernels.ops.flash_attention.triton.problem import (
    capability,
    describable,
    halves,
    lse_like,
    parts,
    problem_of,
    row_strides,
    section,
    starts_of,
    strides_of,
)
from peakward.kernels.ops.flash_attention.triton.settings import (
    FORWARD,
    ForwardSettings,
    forward_settings_for,
)
from peakward.kernels.ops.flash_attention.triton.tiles import LOG2_E, keys_of, place, sees, span
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.tuning import tuned


@triton.jit
def _through_keys(  # type: ignore[no-untyped-def]
    state,
    queries,
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
    """Adds keys `first` to `end` to `state`: (weighted values in two parts, maximum, sum).

    The online softmax of Milakov & Gimelshein 2018: what was summed under the old maximum is rescaled.
    """
    sums, most, total = state
    for start in range(first, end, KEYS):
        k = load_parts(
            keys, at, start, k_len, row_strides[0], KEYS, D1, D2, HEAD_DIM, MASKED, DESCRIPTORS
        )
        score = inner(queries, k, D2, PRECISION)
        key = start + tl.arange(0, KEYS)
        if slope_log2 is None:
            factor = scale_log2
        else:
            distance = tl.abs(position[:, None] - key[None, :])
            score = score * scale_log2 - slope_log2 * distance
            factor = 1.0
        if MASKED:
            distance = position[:, None] - key[None, :]
            score = tl.where(
                sees(distance, key[None, :], k_len, CAUSAL, WINDOW), score, -float("inf")
            )
        now = tl.maximum(most, tl.max(score, 1) * factor)
        # Of a row that has seen no key yet, exp2 is asked for -inf - 0, not for -inf + inf.
        base = tl.where(now == -float("inf"), 0.0, now) if MASKED else now
        weight = tl.math.exp2(score * factor - base[:, None])
        shrink = tl.math.exp2(most - base)
        total = total * shrink + tl.sum(weight, 1)
        most = now
        v = load_parts(
            values, at, start, k_len, row_strides[1], KEYS, D1, D2, HEAD_DIM, MASKED, DESCRIPTORS
        )
        sums = times(sums, shrink[:, None], D2)
        sums = plus_weighted(sums, weight.to(v[0].dtype), v, D2, PRECISION)
    return sums, most, total


@triton.jit
def _attention_forward(  # type: ignore[no-untyped-def]
    q1,
    q2,
    k1,
    k2,
    v1,
    v2,
    out1,
    out2,
    lse_ptr,
    slopes_ptr,
    q_starts,
    k_starts,
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    lse_strides,
    n_heads,
    n_batches,
    q_len,
    k_len,
    section,
    scale_log2,
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
    # Late queries see the most keys: what takes longest is started first.
    start = (n_blocks - 1 - block) * QUERIES
    first_q, q_len = span(q_starts, batch, q_len, VARLEN)
    if VARLEN:
        if start >= q_len:
            return
    first_k, k_len = span(k_starts, batch, k_len, VARLEN)
    shift = k_len - q_len
    at = (batch, head // GROUP)
    keys = heads_of(k1, k2, batch, head // GROUP, first_k, k_strides, DESCRIPTORS)
    values = heads_of(v1, v2, batch, head // GROUP, first_k, v_strides, DESCRIPTORS)
    row_strides = (k_strides[2], v_strides[2])
    position = start + shift + tl.arange(0, QUERIES)
    source = heads_of(q1, q2, batch, head, first_q, q_strides, DESCRIPTORS)
    queries = load_parts(
        source, (batch, head), start, q_len, q_strides[2], QUERIES, D1, D2, HEAD_DIM, True,
        DESCRIPTORS,
    )  # fmt: skip
    if slopes_ptr is None:
        slope_log2 = None
    else:
        slope_log2 = tl.load(slopes_ptr + head) * LOG2_E
    state = (
        zero_parts(QUERIES, D1, D2),
        tl.full([QUERIES], -float("inf"), tl.float32),
        tl.zeros([QUERIES], tl.float32),
    )
    first, full, partial, end = keys_of(start, k_len, shift, QUERIES, KEYS, CAUSAL, WINDOW)
    if WINDOW is not None:
        state = _through_keys(
            state, queries, keys, values, at, row_strides, position, k_len, first, full,
            scale_log2, slope_log2, True, CAUSAL, WINDOW, KEYS, D1, D2, HEAD_DIM, PRECISION,
            DESCRIPTORS,
        )  # fmt: skip
    state = _through_keys(
        state, queries, keys, values, at, row_strides, position, k_len, full, partial,
        scale_log2, slope_log2, False, CAUSAL, WINDOW, KEYS, D1, D2, HEAD_DIM, PRECISION,
        DESCRIPTORS,
    )  # fmt: skip
    sums, most, total = _through_keys(
        state, queries, keys, values, at, row_strides, position, k_len, partial, end,
        scale_log2, slope_log2, True, CAUSAL, WINDOW, KEYS, D1, D2, HEAD_DIM, PRECISION,
        DESCRIPTORS,
    )  # fmt: skip
    inverse = tl.where(total == 0.0, 0.0, 1.0 / total)[:, None]
    target = heads_of(out1, out2, batch, head, first_q, out_strides, False)
    sums = times(sums, inverse, D2)
    store_parts(target, sums, start, q_len, out_strides[2], QUERIES, D1, D2, HEAD_DIM)
    row = start + tl.arange(0, QUERIES)
    lse_ptr += batch.to(tl.int64) * lse_strides[0] + head.to(tl.int64) * lse_strides[1] + first_q
    tl.store(lse_ptr + row, (most + tl.math.log2(total)) / LOG2_E, mask=row < q_len)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor | None,
    rule: Rule,
    packing: Packing | None = None,
    *,
    settings: ForwardSettings | None = None,
) -> tuple[Tensor, Tensor]:
    """out, laid out as q, and the natural logarithm of the sum of exponentials of each row in fp32.

    Args:
        q: (batch, heads, q_len, head_dim), the last contiguous; packed, (tokens, heads, head_dim).
        k, v: (batch, kv_heads, k_len, head_dim) or (tokens, kv_heads, head_dim).
        slopes: (heads,) of fp32.
    """
    problem = problem_of(q, k, packing)
    chosen = settings
    if chosen is None:
        by_rule = forward_settings_for(problem.head_dim, q.dtype, capability())
        chosen = tuned(
            "flash_attention forward",
            lambda: problem.kind(q, rule),
            q.device,
            rule=by_rule,
            others=lambda: [
                by_rule._replace(blocks=each) for each in FORWARD if q.element_size() == 2
            ],
            start=lambda each: forward(q, k, v, slopes, rule, packing, settings=each),
        )
    out = torch.empty_like(q)
    lse = lse_like(problem, q, packing)
    blocks = chosen.blocks
    described = chosen.descriptors and packing is None and describable(q, k, v)
    n_programs = triton.cdiv(problem.q_len, blocks.queries) * problem.n_batches * problem.n_heads
    if n_programs == 0:
        return out, lse
    q_starts, k_starts = starts_of(packing)
    options: dict[str, Any] = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
    first, second = parts(problem.head_dim)
    launch(
        _attention_forward,
        (n_programs,),
        *halves(q, blocks.queries, described=described),
        *halves(k, blocks.keys, described=described),
        *halves(v, blocks.keys, described=described),
        *halves(out, blocks.queries, described=False),
        lse,
        slopes,
        q_starts,
        k_starts,
        strides_of(q),
        strides_of(k),
        strides_of(v),
        strides_of(out),
        row_strides(problem, packing),
        problem.n_heads,
        problem.n_batches,
        problem.q_len,
        problem.k_len,
        problem.group
        * section(
            problem.k_len,
            problem.head_dim,
            q.element_size(),
            n_heads=problem.n_batches * problem.n_kv_heads,
        ),
        rule.scale * LOG2_E.value,
        GROUP=problem.group,
        CAUSAL=rule.causal,
        WINDOW=rule.window,
        QUERIES=blocks.queries,
        KEYS=blocks.keys,
        D1=first,
        D2=second,
        HEAD_DIM=problem.head_dim,
        PRECISION=chosen.precision if q.dtype == torch.float32 else "tf32",
        VARLEN=packing is not None,
        DESCRIPTORS=described,
        **options,
    )
    return out, lse
