"""How products with quantised weights are cut up; no result depends on it beyond rounding."""

from typing import NamedTuple

import torch
import triton

from peakward.kernels.ops.quantized_matmul.triton.words import TILE

H100_MULTIPROCESSORS = 132
MOST_SPLITS = 32
WARPS = 8
"""The warps of a multiprocessor for which columns are split where channels make fewer. Up to 16 rows it
is twice as many, as their registers allow (one row of 14,336 × 4,096 24.6 µs for 26.9), but not with 32
rows (32.8 for 30.7)."""
FEW_ROWS = 16
"""The most rows of x whose digits each program that multiplies them makes for itself."""
LEAST_FILLED = 0.9
"""The share of all multiprocessors that have a program where channels alone fill the GPU: 7,680 by 64 did."""
ALIGNED_BYTES = 16
"""Loaded by a lane at once."""
CHANNELS = 16
"""The channels of a warp whose x is in shared memory; other warps have as many or twice as many."""


class Direct(NamedTuple):
    """A launch whose lanes load x as they load the weight."""

    n_splits: int
    """Programs that share columns."""
    channels: int
    """The channels of a program: 16 or 32."""
    rows: int
    """The rows of x in a program: 8 or 16."""
    warps: int
    """The warps of a program, which share its columns."""
    depth: int
    """Tiles of columns that a warp has on their way at once."""


class Shared(NamedTuple):
    """A launch whose warps read x, a tile of columns at a time, from shared memory."""

    n_splits: int
    """Programs that share columns."""
    rows: int
    """The rows of x in a program: from 8 to 64, a power of two."""
    warps: int
    """The warps of a program, each with 16 channels of its own: 4 or 8."""
    n_stages: int
    """Tiles of the weight on their way to shared memory; 1: none."""


class Row(NamedTuple):
    """A launch for one row of x and a weight of 8 bits, without products of tiles."""

    n_splits: int
    """Programs that share columns."""
    channels: int = 8
    """The channels of a program."""
    columns: int = 512
    """At once; of groups no more than one has."""
    warps: int = 4
    """The warps of a program."""
    n_stages: int = 4
    """Such steps on their way to shared memory."""


class Digits(NamedTuple):
    """A launch for x in digits and a weight of 8 bits that is not widened."""

    n_splits: int
    """Programs that share columns."""
    channels: int
    """The channels of a program: 64, or more by 4 warps for each 64 or 128."""
    rows: int
    """The rows of x in a program: from 8 to 64, a power of two."""
    warps: int
    """The warps of a program."""
    n_stages: int
    """Tiles of columns on their way to shared memory."""
    is_apart: bool
    """Whether a kernel before makes the digits of x; else each program for itself."""


Settings = Direct | Shared | Row | Digits


def byte_settings_for(
    *,
    m: int,
    n: int,
    n_tiles: int,
    group: int,
    dtype: torch.dtype,
    n_multiprocessors: int,
    grouped: bool = False,
    aligned: bool = True,
) -> Settings:
    """The settings for a weight of 8 bits; arguments as those of `word_settings_for`.

    With groups smaller than a tile a program would ask for less than 16 bytes a lane, and so would one of
    many rows of digits where channels are not aligned. fp32 has more digits than two.

    Args:
        grouped: whether a channel has several scales.
        aligned: whether all channels begin at multiples of `ALIGNED_BYTES`.
    """
    if group < TILE.value or dtype == torch.float32 or (m > FEW_ROWS and not aligned):
        return word_settings_for(
            m=m, n=n, n_tiles=n_tiles, group=group, dtype=dtype, n_multiprocessors=n_multiprocessors
        )
    if m > 1:
        return _digits(m, n, n_tiles, n_multiprocessors)
    row = _row(n, n_multiprocessors, grouped=grouped)
    least = 4 * max(1, row.columns // TILE.value)
    return row._replace(n_splits=_two_each(n, row.channels, n_tiles // least, n_multiprocessors))


def _two_each(n: int, channels: int, most: int, n_multiprocessors: int) -> int:
    """Splits to two programs a multiprocessor."""
    wanted = round(2 * n_multiprocessors / max(1, triton.cdiv(n, channels)))
    return max(1, min(wanted, most, MOST_SPLITS))


def _digits(m: int, n: int, n_tiles: int, n_multiprocessors: int) -> Digits:
    """128 channels and two programs a multiprocessor, whose shared memory their stages fill.

    Up to 16 rows each program makes the digits of x, which was the fastest or within 5% of it at four shapes
    (H200, `2026-11-29-h200-kernel-trials-int8-digits`): 63.3 and 66.1 µs of 28,672 × 8,192 at 4 and 16 rows,
    13.0 and 14.7 of 10,240 × 2,560. Made by a kernel before they took 66.8 and 66.3, 16.8 and 17.2 with a
    part of the weight brought into the L2 meanwhile, and 64.5 and 15.0 at 16 rows without.

    From 17 rows on figures are with what was brought, as most of those of a kernel before are. It pays
    there: of 28,672 × 8,192 at 32 rows 68.9 for 86.9. At 64 rows it took 87.3, with 64 channels, which read x
    twice as often, 104.5, and with 256 by 8 warps 86.4. Where programs of 64 channels alone fill the GPU and
    those of 128 do not, columns are not split, and no kernel adds sums: at 32 and 64 rows of 10,240 × 2,560
    16.4 and 22.5 for 20.7 and 25.7, at 32 of 7,680 × 2,560 15.5 for 18.0. Of 2,560 × 10,240 12 splits were
    not timed, and 13, of which the last is empty, from 17 rows on only where that one asked for a negative
    number of bytes (270 at 64): with 7 it took 19.1 at 32 rows, and by 8 warps, with nothing brought, 23.9 at
    64.
    """
    rows = min(64, max(8, triton.next_power_of_2(m)))
    n_stages = 3 if rows == 64 else 4
    full = LEAST_FILLED * n_multiprocessors
    if m > FEW_ROWS and triton.cdiv(n, 128) < full <= triton.cdiv(n, 64):
        return Digits(1, 64, rows, 4, n_stages + 1, is_apart=True)
    n_splits = _two_each(n, 128, n_tiles // 4, n_multiprocessors)
    # None without tiles: of 80, 13 have seven each but for the last.
    n_splits = triton.cdiv(n_tiles, triton.cdiv(n_tiles, n_splits))
    return Digits(n_splits, 128, rows, 4, n_stages, is_apart=m > FEW_ROWS)


def _row(n: int, n_multiprocessors: int, *, grouped: bool) -> Row:
    if grouped:
        return Row(1, channels=32, columns=TILE.value)
    if 1 < n / 8 / (6 * n_multiprocessors) < 1.5:
        # Six are resident, and the few behind them would be alone: of 8,192² 35.6 µs for 42.8.
        return Row(1, channels=4, columns=1024, n_stages=3)
    return Row(1)


def word_settings_for(
    *, m: int, n: int, n_tiles: int, group: int, dtype: torch.dtype, n_multiprocessors: int
) -> Direct | Shared:
    """The settings for a weight of 4 bits, from sweeps on an H100; figures are those of 4,096 × 14,336.

    Args:
        n_tiles: The number of tiles of columns.
        group: The columns that share a scale, at most a tile.
    """
    settings: Direct | Shared
    filled = triton.cdiv(n, CHANNELS) / n_multiprocessors
    if dtype == torch.float32:
        settings = Direct(1, 16, rows=8, warps=4, depth=1)
    elif m > 16:
        settings = Shared(1, 32 if m <= 32 else 64, warps=8, n_stages=4)
    elif m > 8 and (group < 64 or not 4 < filled <= WARPS):
        # `Direct` reads x for every 32 channels, and is the faster where those alone fill the GPU, once: of
        # 10,240 channels 14.1 µs for 14.4, but of 8,192² 23.2 for 21.9, of 14,336 × 4,096 23.3 for 20.0
        # and, behind a flush that writes, of 128,256 channels 152 for 120. In groups of 32 some of its
        # registers are spilled, and 14,336 channels take 23.3 for 23.9.
        settings = Shared(1, 16, warps=8, n_stages=3)
    else:
        settings = _direct(m, group, filled)
    wanted = WARPS if settings.rows > 16 or dtype == torch.float32 else 2 * WARPS
    return split(settings, wanted, m=m, n=n, n_tiles=n_tiles, n_multiprocessors=n_multiprocessors)


def split(
    settings: Direct | Shared,
    warps: int,
    *,
    m: int,
    n: int,
    n_tiles: int,
    n_multiprocessors: int,
) -> Direct | Shared:
    """To at most so many warps a multiprocessor, of 2 tiles each at least, or of 4 where all warps take the
    same."""
    n_programs = triton.cdiv(n, channels_of(settings)) * triton.cdiv(m, settings.rows)
    least = 2 * settings.warps if isinstance(settings, Direct) else 4
    fitting = warps * n_multiprocessors // max(1, n_programs * settings.warps)
    return settings._replace(n_splits=max(1, min(fitting, n_tiles // least, MOST_SPLITS)))


def channels_of(settings: Direct | Shared) -> int:
    """The channels of a program."""
    return settings.channels if isinstance(settings, Direct) else CHANNELS * settings.warps


def _direct(m: int, group: int, filled: float) -> Direct:
    """The settings whose programs are resident at once: 65,536 registers hold 16 warps of 128 a thread,
    or 32 of 64.

    Programs that are not resident run last and leave most of the GPU idle: 5,000 channels took
    19.9 µs for 13.9, 14,336 took 25.6 for 21.0. With more warps in a program more of them wait: 8 took
    30.1 there, and 16 43.9.

    Args:
        filled: blocks of 16 channels for each multiprocessor.
    """
    if m <= 8 and filled > 4:
        # In groups of 32 24.4 µs for 28.0 with eight warps.
        return Direct(1, 32, rows=8, warps=4, depth=2 if group >= 64 else 1)
    if m <= 8 and group < 64:
        return Direct(1, 32, rows=8, warps=8, depth=1)
    if m <= 8:
        return Direct(1, 16, rows=8, warps=8, depth=1 if 2 < filled <= 4 else 2)
    return Direct(1, 32, rows=16, warps=4, depth=1)
