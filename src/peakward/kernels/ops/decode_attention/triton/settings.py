"""The cut of a launch; it changes no result beyond rounding."""

import math
from typing import NamedTuple

H100_MULTIPROCESSORS = 132
H100_SHARED_BYTES = 227 << 10
RESERVED_BYTES = 12 << 10
"""The shared memory that 16 queries of a program and their weights may take; up to 9 KiB were taken."""
MOST_ROWS = 64
"""The most rows of one product; further rows go to further programs, which read the keys again."""
MOST_SPLITS = 256
LEAST_CHUNK = 128
"""The least positions of a program: with fewer, starting it takes as long as reading them."""
MOST_POSITIONS = 128
"""Positions of a block."""
STAGES = 3
MOST_RESIDENT = 3
"""Programs of a multiprocessor: those of narrow caches compute for longer than they read, and four lack
registers."""
BLOCK_BYTES, PAGED_BLOCK_BYTES, NARROW_BLOCK_BYTES = 32 << 10, 16 << 10, 8 << 10
"""The keys of a block, and its values: as they are read; in pages, where further programs hide the way
through the table; and in a byte or half a byte an element, which more registers widen."""


class Settings(NamedTuple):
    """The settings of one launch."""

    n_splits: int
    block_positions: int
    num_warps: int
    num_stages: int
    """Blocks on their way, and that at hand."""


def settings_for(
    *,
    n_groups: int,
    n_rows: int,
    span: int,
    row_bytes: int,
    n_multiprocessors: int,
    item_bytes: int = 2,
    in_pages: bool = False,
    shared_bytes: int = H100_SHARED_BYTES,
    widened_bytes: int = 0,
) -> Settings:
    """
    Args:
        n_groups: batch · kv_heads · blocks of rows.
        n_rows: queries and heads that share keys.
        span: positions that a sequence may have to read.
        row_bytes: of one position's keys, padded to a power of two.
        item_bytes: of an element as it is stored, 1 also of half bytes.
        shared_bytes: that a program may have.
        widened_bytes: of one position's keys where these are widened in shared memory, as half bytes are.
    """
    # Two blocks are on their way, and as many programs are there as then fit. µs of these settings and of the
    # fastest of some fifty on an H200, 4 × 4,096 positions of 32 heads of 80, and 16 × 8,192 of 8 of 128:
    # int8 36.9 and 36.9, 74.6 and 74.6; int4 38.3 and 38.3, 73.1 and 73.1; bf16 53.5 and 50.6 at the first,
    # at the second in two pieces 130 and 129 (`2026-11-28-h200-kernel-trials-narrow-caches`). On an H100 bf16
    # was within 5% at 5 shapes, when queries were the left side of the product
    # (`2026-11-22-h100-kernel-sweep-decode_attention`). Steps of `2.7B` on pages in int8 took 5.12 ms by
    # blocks of 16 KiB and 5.45 by those of 8; in bf16 5.47 by 16 and 5.75 by 32 (four rows, 4,096 positions).
    block_bytes = NARROW_BLOCK_BYTES if item_bytes == 1 else BLOCK_BYTES
    if in_pages:
        block_bytes = PAGED_BLOCK_BYTES
    block = max(32, min(MOST_POSITIONS, block_bytes // row_bytes))
    reserved = RESERVED_BYTES * -(-min(n_rows, MOST_ROWS) // 16)
    # Hopper's products read the keys at hand from shared memory too.
    at_hand = int(shared_bytes >= H100_SHARED_BYTES)

    def stages_within(block: int) -> int:
        blocks = (shared_bytes - reserved - block * widened_bytes) // (block * row_bytes)
        return min(STAGES, 1 + (blocks - at_hand) // 2)

    while block > 32 and stages_within(block) < STAGES:
        block //= 2
    stages = max(1, stages_within(block))
    taken = reserved + block * (widened_bytes + (2 * (stages - 1) + at_hand) * row_bytes)
    resident = max(1, min(MOST_RESIDENT, shared_bytes // taken))
    most = max(1, min(MOST_SPLITS, span // max(LEAST_CHUNK, 16 * n_rows)))
    return Settings(
        n_splits=_splits(n_groups, most, resident * n_multiprocessors),
        block_positions=block,
        num_warps=4,
        num_stages=stages,
    )


def others_for(rule: Settings, span: int) -> tuple[Settings, ...]:
    """Settings to time beside those of the rule, for caches with `span` positions."""
    most = max(1, min(MOST_SPLITS, span // LEAST_CHUNK))
    splits = {max(1, rule.n_splits // 2), rule.n_splits, min(2 * rule.n_splits, most)}
    return tuple(
        Settings(each, block, 4, stages)
        for each in sorted(splits)
        for block, stages in ((32, 3), (32, 4), (64, 3), (64, 4), (128, 2), (128, 3))
    )


def _splits(n_groups: int, most: int, slots: int) -> int:
    """The fewest that leave at most a tenth of the last wave's slots idle beyond the best number."""

    def fill(n_splits: int) -> float:
        waves = max(1, n_groups) * n_splits / slots
        return waves / math.ceil(waves)

    fills = {each: fill(each) for each in range(1, most + 1)}
    enough = 0.9 * max(fills.values())
    return next(each for each, share in fills.items() if share >= enough)
