"""Flash-decoding: the keys of a sequence are split over programs, whose results a second kernel joins.

Dao et al. 2023 (https://crfm.stanford.edu/2023/10/12/flashdecoding.html). A step of decode reads its
cache once and computes next to nothing, so that bytes in flight decide. The heads that share keys are
rows of one product, which pads them to 16, and a head dimension of 80 or 96 to 128 with columns that
are not fetched. (As products of 64 and the rest it took 197 registers a thread for 90, and spilled in
int8.) The scale of a quantised position multiplies its score, and its weight, rather than its
elements; in fp32 the products are not those of tensor cores, which only tests should want.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.lab.ops.dependent import dependent, wait_for_the_one_before
from peakward.lab.ops.tuning import tuned

H100_MULTIPROCESSORS = 132
MOST_SPLITS = 256
MOST_ROWS = 64
"""Of one product; more go to further programs, which read the keys again."""
LEAST_CHUNK = 256
"""Positions a program: fewer, and starting it takes as long as reading them."""
RESIDENT = 1
"""Programs a multiprocessor: each has 96 to 128 KiB on their way."""
BLOCK_SPLITS = 16
LOG2_E = math.log2(math.e)
LN_2: tl.constexpr = tl.constexpr(math.log(2))


class Settings(NamedTuple):
    """How a launch is cut up; no result depends on it beyond rounding."""

    n_splits: int
    block_positions: int
    num_warps: int
    num_stages: int


def settings_for(
    *,
    n_groups: int,
    n_rows: int,
    span: int,
    row_bytes: int,
    n_multiprocessors: int,
) -> Settings:
    """
    Args:
        n_groups: batch · kv_heads · blocks of rows.
        n_rows: queries and heads that share keys.
        span: positions that a sequence may have to read.
        row_bytes: of one position's keys, padded to a power of two.
    """
    # 16 KiB of keys a block, and of values, three or four of each on their way. Of an H100's sweep
    # within 4% of the fastest at 8 shapes (results/2026-11-22-h100-kernel-sweep-decode_attention).
    block = max(32, min(128, (16 << 10) // row_bytes))
    chunk = max(LEAST_CHUNK, 16 * n_rows)
    most = max(1, min(MOST_SPLITS, span // chunk))
    return Settings(
        n_splits=_splits(n_groups, most, RESIDENT * n_multiprocessors),
        block_positions=block,
        num_warps=4,
        num_stages=4 if row_bytes >= 256 else 3,
    )


def others_for(rule: Settings, span: int) -> tuple[Settings, ...]:
    """To be timed beside the rule's."""
    most = max(1, min(MOST_SPLITS, span // LEAST_CHUNK))
    splits = {max(1, rule.n_splits // 2), rule.n_splits, min(2 * rule.n_splits, most)}
    return tuple(
        Settings(each, block, 4, stages)
        for each in sorted(splits)
        for block, stages in ((32, 4), (64, 3), (64, 4), (128, 2), (128, 3))
    )


def _splits(n_groups: int, most: int, slots: int) -> int:
    """The fewest that leave at most a tenth of the last wave's slots idle beyond the best number."""

    def fill(n_splits: int) -> float:
        waves = max(1, n_groups) * n_splits / slots
        return waves / math.ceil(waves)

    fills = {each: fill(each) for each in range(1, most + 1)}
    enough = 0.9 * max(fills.values())
    return next(each for each, share in fills.items() if share >= enough)


@triton.jit
def _decode_attention(  # type: ignore[no-untyped-def]  # noqa: PLR0915
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    table_ptr,
    lengths_ptr,
    out_ptr,
    lse_ptr,
    positions,
    window,
    scale_log2,
    q_batch,
    q_head,
    q_query,
    q_dim,
    k_batch,
    k_head,
    k_position,
    k_dim,
    v_batch,
    v_head,
    v_position,
    v_dim,
    ks_batch,
    ks_head,
    ks_position,
    vs_batch,
    vs_head,
    vs_position,
    table_batch,
    table_page,
    n_groups,
    kv_heads,
    row_blocks,
    ROWS: tl.constexpr,
    N_QUERIES: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    WINDOWED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One piece of the keys of the heads that share them. In a paged cache `*_batch` is a page's
    stride and `*_position` that of a position within its page."""
    program = tl.program_id(0)
    group = program // row_blocks
    batch = (group // kv_heads).to(tl.int64)
    head = (group % kv_heads).to(tl.int64)
    length = positions
    if HAS_LENGTHS:
        length = tl.load(lengths_ptr + batch).to(tl.int32)
    first = 0
    if WINDOWED:
        first = tl.maximum(length - N_QUERIES - window + 1, 0)
    chunk = tl.cdiv(tl.cdiv(length - first, tl.num_programs(1)), BLOCK) * BLOCK
    low = first + tl.program_id(1) * chunk
    high = tl.minimum(low + chunk, length)

    row = (program % row_blocks) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_row = row < ROWS
    own = length - N_QUERIES + row % N_QUERIES
    dim = tl.arange(0, BLOCK_DIM)
    is_dim = (dim < HEAD_DIM)[None, :]
    q_head_of_row = head * (ROWS // N_QUERIES) + row // N_QUERIES
    q_rows = q_ptr + batch * q_batch + q_head_of_row * q_head + (row % N_QUERIES) * q_query
    within = is_row[:, None] & is_dim
    q = tl.load(q_rows[:, None] + dim[None, :] * q_dim, mask=within, other=0.0)
    to_log2 = tl.full((BLOCK_ROWS,), 1.0, tl.float32) * scale_log2
    if (k_ptr.dtype.element_ty == tl.float8e4nv) and (q.dtype == tl.bfloat16):
        # To fp16 a pair of e4m3 is widened in one instruction, to bf16 in four.
        peak = tl.max(tl.abs(q.to(tl.float32)), 1)
        peak = tl.where(peak == 0.0, 1.0, peak)
        q = (q.to(tl.float32) / peak[:, None]).to(tl.float16)
        to_log2 *= peak
    acc = tl.zeros((BLOCK_ROWS, BLOCK_DIM // 2 if QUANTIZED else BLOCK_DIM), tl.float32)
    acc_odd = acc
    largest = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)

    for start in range(low, high, BLOCK):
        position = start + tl.arange(0, BLOCK)
        held = position < length
        if PAGE_SIZE:
            entry = table_ptr + batch * table_batch + (position // PAGE_SIZE) * table_page
            page = tl.load(entry, mask=held, other=0).to(tl.int64)
            slot = position % PAGE_SIZE
        else:
            page = batch
            slot = position.to(tl.int64)
        k_rows = k_ptr + page * k_batch + head * k_head + slot * k_position
        v_rows = v_ptr + page * v_batch + head * v_head + slot * v_position
        fetched = held[:, None] & is_dim
        k = tl.load(k_rows[:, None] + dim[None, :] * k_dim, mask=fetched, other=0.0)
        score = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * to_log2[:, None]
        if QUANTIZED:
            k_scale = k_scale_ptr + page * ks_batch + head * ks_head + slot * ks_position
            score *= tl.load(k_scale, mask=held, other=0.0).to(tl.float32)[None, :]
        allowed = position[None, :] <= own[:, None]
        if WINDOWED:
            allowed = allowed & (position[None, :] > own[:, None] - window)
        score = tl.where(allowed, score, float("-inf"))

        raised = tl.maximum(largest, tl.max(score, 1))
        # Where nothing is allowed yet: minus infinity less itself would be NaN.
        shift = tl.where(raised == float("-inf"), 0.0, raised)
        weight = tl.exp2(score - shift[:, None])
        shrink = tl.exp2(largest - shift)
        total = total * shrink + tl.sum(weight, 1)
        largest = raised
        if QUANTIZED:
            # Relative to the block's largest, so that no weight falls out of fp16's range.
            v_scale = v_scale_ptr + page * vs_batch + head * vs_head + slot * vs_position
            v_scale = tl.load(v_scale, mask=held, other=0.0).to(tl.float32)
            unit = tl.max(v_scale, 0)
            weight *= (v_scale / tl.where(unit == 0.0, 1.0, unit))[None, :]
            weight = weight.to(q.dtype)
            # Pairs of columns: turning 16-bit elements in shared memory is one instruction for many,
            # bytes go one by one.
            pair = tl.arange(0, BLOCK_DIM // 2)
            fetched = held[:, None] & (pair < HEAD_DIM // 2)[None, :]
            pairs = v_rows.to(tl.pointer_type(tl.int16), bitcast=True)
            v = tl.load(pairs[:, None] + pair[None, :], mask=fetched, other=0)
            even = v.to(tl.int8).to(k.dtype, bitcast=True).to(q.dtype)
            odd = (v >> 8).to(tl.int8).to(k.dtype, bitcast=True).to(q.dtype)
            acc = acc * shrink[:, None] + tl.dot(weight, even, input_precision="ieee") * unit
            acc_odd = acc_odd * shrink[:, None] + tl.dot(weight, odd, input_precision="ieee") * unit
        else:
            v = tl.load(v_rows[:, None] + dim[None, :] * v_dim, mask=fetched, other=0.0)
            acc *= shrink[:, None]
            acc = tl.dot(weight.to(v.dtype), v, acc, input_precision="ieee")

    if QUANTIZED:
        acc = tl.interleave(acc, acc_odd)
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    lse = tl.where(is_empty, float("-inf"), (largest + tl.log2(total)) * LN_2)
    out_row = (tl.program_id(1).to(tl.int64) * n_groups + group) * ROWS + row
    tl.store(lse_ptr + out_row, lse, mask=is_row)
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_row[:, None] * HEAD_DIM + dim[None, :], out, mask=within)


@triton.jit
def _decode_attention_join(  # type: ignore[no-untyped-def]
    parts_ptr,
    part_lses_ptr,
    out_ptr,
    lse_ptr,
    n_rows,
    n_splits,
    HEAD_DIM: tl.constexpr,
    ALL_SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One row of the pieces' outputs (n_splits, n_rows, HEAD_DIM), each weighed by its share."""
    wait_for_the_one_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    every = tl.arange(0, ALL_SPLITS)
    lses = part_lses_ptr + every.to(tl.int64) * n_rows + row
    part_lses = tl.load(lses, mask=every < n_splits, other=float("-inf"))
    largest = tl.max(part_lses, 0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(tl.exp(part_lses - shift), 0)
    dim = tl.arange(0, BLOCK_DIM)
    acc = tl.zeros((BLOCK_SPLITS, BLOCK_DIM), tl.float32)
    for start in range(0, n_splits, BLOCK_SPLITS):
        split = start + tl.arange(0, BLOCK_SPLITS)
        part_row = split.to(tl.int64) * n_rows + row
        part_lse = tl.load(part_lses_ptr + part_row, mask=split < n_splits, other=float("-inf"))
        there = (part_lse != float("-inf"))[:, None] & (dim < HEAD_DIM)[None, :]
        parts = parts_ptr + part_row[:, None] * HEAD_DIM + dim[None, :]
        acc += tl.exp(part_lse - shift)[:, None] * tl.load(parts, mask=there, other=0.0)
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    tl.store(lse_ptr + row, tl.where(is_empty, float("-inf"), shift + tl.log(total)))
    out = tl.sum(acc, 0) / total
    tl.store(out_ptr + row * HEAD_DIM + dim, out.to(out_ptr.dtype.element_ty), mask=dim < HEAD_DIM)


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int | None = None,
    scale: float | None = None,
    settings: Settings | None = None,
    n_multiprocessors: int = H100_MULTIPROCESSORS,
) -> tuple[Tensor, Tensor]:
    """As `reference.decode_attention`, of a cache that may be paged and quantised.

    Args:
        k, v: of any strides, in q's dtype or quantised; with `block_table` pages
            (n_pages, page_size, kv_heads, head_dim).
        k_scale, v_scale: of quantised caches, k's shape without the last dimension.

    Returns:
        The output in q's dtype, and the log-sum-exp in fp32; both contiguous.
    """
    start = partial(
        decode_attention,
        *(q, k, v),
        lengths=lengths,
        block_table=block_table,
        k_scale=k_scale,
        v_scale=v_scale,
        window=window,
        scale=scale,
    )
    batch, heads, n_queries, head_dim = q.shape
    page_size, positions = 0, k.shape[2]
    if block_table is not None:
        page_size = k.shape[1]
        positions = block_table.shape[1] * page_size
        # To the dimensions (page, kv_head, position) of what is contiguous.
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        k_scale, v_scale = (None if s is None else s.transpose(1, 2) for s in (k_scale, v_scale))
    kv_heads = k.shape[1]
    rows = heads // kv_heads * n_queries
    block_rows = min(MOST_ROWS, max(16, triton.next_power_of_2(rows)))
    row_blocks = triton.cdiv(rows, block_rows)
    out = torch.empty((batch, heads, n_queries, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, n_queries), dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out, lse
    span = positions if window is None else min(positions, window + n_queries - 1)
    if settings is None:
        rule = settings_for(
            n_groups=batch * kv_heads * row_blocks,
            n_rows=rows,
            span=span,
            row_bytes=triton.next_power_of_2(head_dim) * k.element_size(),
            n_multiprocessors=n_multiprocessors,
        )
        settings = tuned(
            "decode_attention",
            lambda: (
                f"{rows} rows of {q.dtype}, {head_dim} wide, {batch * kv_heads} caches of {k.dtype}, "
                f"up to {triton.next_power_of_2(span)} positions, pages of {page_size}"
            ),
            q.device,
            rule=rule,
            others=lambda: others_for(rule, span),
            start=lambda each: start(settings=each),
        )
    n_splits = settings.n_splits
    parts, part_lses = out, lse
    if n_splits > 1:
        parts = torch.empty((n_splits, *out.shape), dtype=torch.float32, device=q.device)
        part_lses = torch.empty((n_splits, *lse.shape), dtype=torch.float32, device=q.device)
    block_dim = max(16, triton.next_power_of_2(head_dim))
    _decode_attention[(batch * kv_heads * row_blocks, n_splits)](
        q,
        k,
        v,
        k_scale,
        v_scale,
        block_table,
        lengths,
        parts,
        part_lses,
        positions,
        window or 0,
        (1 / math.sqrt(head_dim) if scale is None else scale) * LOG2_E,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *((0, 0, 0) if k_scale is None else k_scale.stride()),
        *((0, 0, 0) if v_scale is None else v_scale.stride()),
        *((0, 0) if block_table is None else block_table.stride()),
        batch * kv_heads,
        kv_heads,
        row_blocks,
        ROWS=rows,
        N_QUERIES=n_queries,
        PAGE_SIZE=page_size,
        HAS_LENGTHS=lengths is not None,
        WINDOWED=window is not None,
        QUANTIZED=k_scale is not None,
        BLOCK_ROWS=block_rows,
        BLOCK=settings.block_positions,
        BLOCK_DIM=block_dim,
        HEAD_DIM=head_dim,
        num_warps=settings.num_warps,
        num_stages=settings.num_stages,
    )
    if n_splits > 1:
        n_rows = batch * heads * n_queries
        _decode_attention_join[(n_rows,)](
            parts,
            part_lses,
            out,
            lse,
            n_rows,
            n_splits,
            HEAD_DIM=head_dim,
            ALL_SPLITS=triton.next_power_of_2(n_splits),
            BLOCK_SPLITS=BLOCK_SPLITS,
            BLOCK_DIM=block_dim,
            num_warps=4,
            **dependent(),
        )
    return out, lse
