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
LEAST_CHUNK = 256
"""The least positions of a program: with fewer, starting it takes as long as reading them."""
MOST_POSITIONS = 128
"""Positions of a block."""
RESIDENT = 1
"""The programs of a multiprocessor: each has 96 to 128 KiB on their way."""


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
    shared_bytes: int = H100_SHARED_BYTES,
    widened_bytes: int = 0,
) -> Settings:
    """
    Args:
        n_groups: batch · kv_heads · blocks of rows.
        n_rows: queries and heads that share keys.
        span: positions that a sequence may have to read.
        row_bytes: of one position's keys, padded to a power of two.
        shared_bytes: that a program may have.
        widened_bytes: of one position's keys where these are widened in shared memory, as half bytes are.
    """
    # 16 KiB of keys a block, and of values, three or four of each on their way. Of an H100's sweep
    # within 4% of the fastest at 8 shapes (results/2026-11-22-h100-kernel-sweep-decode_attention).
    block = max(32, min(MOST_POSITIONS, (16 << 10) // row_bytes))
    free = shared_bytes - RESERVED_BYTES * -(-min(n_rows, MOST_ROWS) // 16)
    while block > 32 and block * widened_bytes > free // 3:
        block //= 2
    chunk = max(LEAST_CHUNK, 16 * n_rows)
    most = max(1, min(MOST_SPLITS, span // chunk))
    fitting = 1 + (free - block * widened_bytes) // (2 * block * row_bytes)
    return Settings(
        n_splits=_splits(n_groups, most, RESIDENT * n_multiprocessors),
        block_positions=block,
        num_warps=4,
        num_stages=max(1, min(4 if row_bytes >= 256 else 3, fitting)),
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
