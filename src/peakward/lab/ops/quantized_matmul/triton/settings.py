"""How products with quantised weights are cut up; no result depends on it beyond rounding."""

from typing import NamedTuple

import torch
import triton

H100_MULTIPROCESSORS = 132
MOST_SPLITS = 32
WARPS = 8
"""Of a multiprocessor, that columns are split for where channels make fewer; twice as many of what shares
16 rows, whose registers allow it (49.7 µs for 55.2), but not 32 (32.8 for 30.7)."""
CHANNELS = 16
"""Of a warp whose x is in shared memory."""


class Direct(NamedTuple):
    """A launch whose lanes load x as they load the weight."""

    n_splits: int
    """Programs that share columns."""
    channels: int
    """Of a program: 16 or 32."""
    rows: int
    """Of x, of a program: 8 or 16."""
    warps: int
    """Of a program, that share its columns."""
    n_stages: int
    """Tiles on their way to shared memory; 1: none, loads go to registers and warps wait in turns."""


class Shared(NamedTuple):
    """A launch whose warps read x, a tile of columns at a time, from shared memory."""

    n_splits: int
    """Programs that share columns."""
    rows: int
    """Of x, of a program: from 8 to 64, a power of two."""
    warps: int
    """Of a program, of 16 other channels each: 4 or 8."""
    n_stages: int
    """Tiles of the weight on their way to shared memory; 1: none."""


def settings_for(
    *,
    m: int,
    n: int,
    n_tiles: int,
    bits: int,
    group: int,
    dtype: torch.dtype,
    n_multiprocessors: int,
) -> Direct | Shared:
    """By sweeps on an H100; figures are of 4,096 × 14,336.

    Args:
        n_tiles: of columns.
        bits: of a weight.
        group: columns that share a scale, at most a tile.
    """
    settings: Direct | Shared
    if dtype == torch.float32:
        settings = Direct(1, 16, rows=8, warps=4, n_stages=1)
    elif m > 16:
        settings = Shared(1, 32 if m <= 32 else 64, warps=8, n_stages=4)
    elif m > 8 and (bits == 8 or group < 64):
        # In two splits 49.7 µs for 65.2 of int8, 32.0 for 36.8 of int4 in groups of 32, of 16 rows; of groups
        # of 128 29.0 for 29.8, but at 8,192² 34.2 for 30.0. Other sizes of the former were not timed.
        settings = Shared(1, 16, warps=8, n_stages=4)
    else:
        settings = _direct(m, n, group, n_multiprocessors)
    n_programs = triton.cdiv(n, channels_of(settings)) * triton.cdiv(m, settings.rows)
    n_warps = max(1, n_programs * settings.warps)
    # Of 2 tiles a warp, or of 4 where all warps take the same, at least.
    least = 2 * settings.warps if isinstance(settings, Direct) else 4
    wanted = 2 * WARPS if isinstance(settings, Shared) and settings.rows == 16 else WARPS
    n_splits = min(wanted * n_multiprocessors // n_warps, n_tiles // least, MOST_SPLITS)
    return settings._replace(n_splits=max(1, n_splits))


def channels_of(settings: Direct | Shared) -> int:
    """Of a program."""
    return settings.channels if isinstance(settings, Direct) else CHANNELS * settings.warps


def _direct(m: int, n: int, group: int, n_multiprocessors: int) -> Direct:
    # Of one row 16 channels took 26.2 µs and 32 took 27.4, of four 27.5 and 29.5; of groups of 32 columns
    # 30.6 and 28.9; of 16 rows, each read once a program, 39.5 and 32.1.
    channels = 32 if m > 4 or group < 64 else 16
    settings = Direct(1, channels, rows=8 if m <= 8 else 16, warps=8, n_stages=1)
    resident = 2 * n_multiprocessors
    if settings.rows == 16 and triton.cdiv(n, channels) > resident:
        # Warps that wait in turns were the faster where all are resident at once (30.0 µs against 34.5
        # at 8,192²), and here, where they are not, the slower (32.1 against 29.8).
        settings = settings._replace(warps=4, n_stages=3)
    return settings
