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
    is_apart: bool = True
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
) -> Settings:
    """The settings for a weight of 8 bits; arguments as those of `word_settings_for`.

    One row is split to two programs a multiprocessor, and so are more, with at least four steps each. With
    groups smaller than a tile a program would ask for less than 16 bytes a lane. fp32 has more digits than
    two.

    Args:
        grouped: whether a channel has several scales.
    """
    if group < TILE.value or dtype == torch.float32:
        return word_settings_for(
            m=m, n=n, n_tiles=n_tiles, group=group, dtype=dtype, n_multiprocessors=n_multiprocessors
        )
    settings = (
        _row(n, n_multiprocessors, grouped=grouped) if m == 1 else _digits(m, n, n_multiprocessors)
    )
    n_programs = max(1, triton.cdiv(n, settings.channels))
    wanted = round(2 * n_multiprocessors / n_programs)
    least = 4 * (max(1, settings.columns // TILE.value) if isinstance(settings, Row) else 1)
    return settings._replace(n_splits=max(1, min(wanted, n_tiles // least, MOST_SPLITS)))


def _digits(m: int, n: int, n_multiprocessors: int) -> Digits:
    """Every program reads x's digits: beside 64 rows of 128 channels as many bytes as of the weight."""
    rows = min(64, max(8, triton.next_power_of_2(m)))
    fills = n >= 96 * n_multiprocessors
    if rows == 64:
        return Digits(1, 128, rows, warps=8, n_stages=3)
    return Digits(1, 128 if fills else 64, rows, warps=4, n_stages=4)


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
