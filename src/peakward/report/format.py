"""Numbers for readers: three significant figures, with a prefix where the unit takes one.

Bytes take binary prefixes (GiB is 2**30), rates of bytes decimal ones (GB/s is 1e9). None is "–". Text in a
numeric column (for example a status) prints unchanged, and a view may colour some words (`tone`): the words
alone carry the meaning.
"""

import math
from typing import Literal, NamedTuple

from peakward.records.measurement import Interval
from peakward.records.study import Cell, Unit
from peakward.stats.pairs import LEAST_GAIN

NOTHING = "–"
MINUS = "\N{MINUS SIGN}"
MOST_DECIMALS = 7
LEAST_SHARE = 0.001
"""A smaller share prints as nothing: digits of 1e-7 of a peak come from the allocator, not from the lever."""


class Prefix(NamedTuple):
    """A prefix: its size in base units, its symbol, and the smallest value that uses it."""

    size: float
    suffix: str
    least: float = 1.0


Scale = tuple[Prefix, ...]
"""Prefixes, largest first. A value that reaches none of them takes the last."""
SCALES: dict[Unit, Scale] = {
    "text": (Prefix(1.0, ""),),
    "name": (Prefix(1.0, ""),),
    "count": (Prefix(1.0, ""),),
    # Parameters and tokens use the customary prefixes: 70 B, 1.4 T.
    "large_count": (
        Prefix(1e12, " T"),
        Prefix(1e9, " B"),
        Prefix(1e6, " M"),
        Prefix(1.0, ""),
    ),
    "s": (Prefix(1.0, " s"), Prefix(1e-3, " ms"), Prefix(1e-6, " µs"), Prefix(1e-9, " ns")),
    "bytes": (
        Prefix(2.0**30, " GiB"),
        Prefix(2.0**20, " MiB"),
        Prefix(2.0**10, " KiB"),
        Prefix(1.0, " B"),
    ),
    "flops": (
        Prefix(1e24, " YFLOP"),
        Prefix(1e21, " ZFLOP"),
        Prefix(1e18, " EFLOP"),
        Prefix(1e15, " PFLOP"),
        Prefix(1e12, " TFLOP"),
        Prefix(1e9, " GFLOP"),
        Prefix(1e6, " MFLOP"),
        Prefix(1.0, " FLOP"),
    ),
    "flops_per_s": (
        Prefix(1e12, " TFLOP/s"),
        Prefix(1e9, " GFLOP/s"),
        Prefix(1e6, " MFLOP/s"),
        Prefix(1.0, " FLOP/s"),
    ),
    "bytes_per_s": (
        Prefix(1e9, " GB/s"),
        Prefix(1e6, " MB/s"),
        Prefix(1e3, " kB/s"),
        Prefix(1.0, " B/s"),
    ),
    "tokens_per_s": (Prefix(1e6, "M tok/s"), Prefix(1e3, "k tok/s"), Prefix(1.0, " tok/s")),
    "ratio": (Prefix(1.0, "×"),),
    "share": (Prefix(0.01, "%"),),
    "j": (Prefix(1e3, " kJ"), Prefix(1.0, " J"), Prefix(1e-3, " mJ"), Prefix(1e-6, " µJ")),
}


def format_cell(value: Cell, unit: Unit) -> str:
    """The value with its unit, to three significant figures. Whole counts print in full.

    `value` is in the unit's base: seconds, bytes, FLOPs; a share of 1 is 100%.
    """
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    if unit == "count" and float(value).is_integer() and abs(value) < 1e15:
        return _sign(value) + f"{abs(value):,.0f}"
    if unit == "share" and 0 < abs(value) < LEAST_SHARE:
        return "<0.1%"
    prefix = _prefix(abs(value), unit)
    return _number(value / prefix.size, 3) + prefix.suffix


def prefix_size(value: float, unit: Unit) -> float:
    """The size of the prefix in which a value prints: 2**30 for 14.2 GiB."""
    return _prefix(abs(value), unit).size


def format_beside(value: float, largest: float, unit: Unit) -> str:
    """The value in the prefix of a larger one beside it; in its own where it is less than a hundredth."""
    prefix = _prefix(abs(largest), unit)
    if value and _rounded(abs(value) / prefix.size, 3) < 0.01:
        return format_cell(value, unit)
    return _number(value / prefix.size, 3) + prefix.suffix


def format_interval(interval: Interval, unit: Unit) -> str:
    """Both ends in one prefix, to three figures, or to more where they would look equal."""
    dash = " to " if interval.low < 0 else "–"
    ends = (_within(end, interval, unit) for end in (interval.low, interval.high))
    return dash.join(ends) + _prefix_of(interval, unit).suffix


def format_ends(interval: Interval, unit: Unit) -> tuple[str, str]:
    """Each end with its unit, with the digits of `format_interval`."""
    suffix = _prefix_of(interval, unit).suffix
    low, high = (_within(end, interval, unit) + suffix for end in (interval.low, interval.high))
    return low, high


def print_alike(interval: Interval, unit: Unit) -> bool:
    """Whether three figures are too few to tell the ends apart."""
    low, high = (format_cell(end, unit) for end in (interval.low, interval.high))
    return interval.low < interval.high and low == high


def format_estimate(interval: Interval, unit: Unit) -> str:
    """The estimate with as many digits as its interval's ends, so that it prints between them."""
    return _within(interval.estimate, interval, unit) + _prefix_of(interval, unit).suffix


def format_spread(interval: Interval, unit: Unit) -> str:
    """The estimate, then its interval: "1.0174 s (1.0173–1.0175 s)"."""
    return f"{format_estimate(interval, unit)} ({format_interval(interval, unit)})"


def format_duration(seconds: float) -> str:
    """Wall time, with minutes or hours where there are some: "1 min 42 s", "2 h 05 min"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return format_cell(seconds, "s")
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left:02d} min" if hours else f"{minutes} min {rest:02d} s"


def is_numeric(unit: Unit) -> bool:
    """Whether a column of the unit is right-aligned."""
    return unit not in ("text", "name")


def _prefix_of(interval: Interval, unit: Unit) -> Prefix:
    return _prefix(max(abs(interval.low), abs(interval.high)), unit)


def _within(value: float, interval: Interval, unit: Unit) -> str:
    """The interval's estimate or end in the common prefix, without its symbol."""
    size = _prefix_of(interval, unit).size
    scaled, width = value / size, (interval.high - interval.low) / size
    decimals = _decimals(scaled, width)
    if unit == "ratio":
        while decimals < MOST_DECIMALS and _seems_to_reach(scaled, decimals):
            decimals += 1
    return _sign(scaled) + f"{abs(scaled):,.{decimals}f}"


def _seems_to_reach(ratio: float, decimals: int) -> bool:
    """Whether the number prints as a verdict's limit that it does not reach: an interval of 1.003 to 1.05
    does not hold 1, and one up to 1.0096 holds no gain of 1%."""
    shown = round(ratio, decimals)
    return (shown == 1 != ratio) or ratio < 1 + LEAST_GAIN <= shown


def _prefix(size: float, unit: Unit) -> Prefix:
    scale = SCALES[unit]
    if size == 0:
        return min(scale, key=lambda prefix: abs(math.log(prefix.size)))
    # The size is rounded first: 999.6 ms is 1.00 s, not 1,000 ms.
    return next((each for each in scale if _rounded(size / each.size, 3) >= each.least), scale[-1])


def _number(value: float, figures: int) -> str:
    """Positional notation down to a thousandth, then a power of ten."""
    rounded = _rounded(abs(value), figures)
    if rounded == 0 or not math.isfinite(rounded):
        return f"{rounded:.0f}"
    exponent = math.floor(math.log10(rounded))
    if exponent < -3:
        text = f"{rounded:.{figures - 1}e}".replace("e-0", "e-")
    else:
        text = f"{rounded:,.{max(0, figures - 1 - exponent)}f}"
    return _sign(value) + text


def _decimals(end: float, width: float) -> int:
    """Decimals for three figures, and enough that the last digit is at most half of `width` (1.002 to
    1.006)."""
    three = 2 - math.floor(math.log10(abs(_rounded(end, 3)))) if end else 0
    telling = -math.floor(math.log10(width / 2)) if width > 0 else three
    return max(0, three, min(telling, three + 3))


def _sign(value: float) -> str:
    return MINUS if value < 0 else ""


def _rounded(value: float, figures: int) -> float:
    return float(f"{value:.{figures - 1}e}")


Tone = Literal["good", "bad", "doubtful", "muted"]
TONES: dict[str, Tone] = {
    "gain confirmed": "good",
    "makes it run": "good",
    "ok": "good",
    "holds": "good",
    "stable": "good",
    "rejected": "bad",
    "violated": "bad",
    "oom": "bad",
    "timeout": "bad",
    "crashed": "bad",
    "invalid": "bad",
    "inconclusive": "doubtful",
    "unstable": "doubtful",
    "throttled": "doubtful",
    "not computed": "muted",
    "not measured": "muted",
    "refused": "muted",
}


def tone(cell: Cell) -> Tone | None:
    """The tone of a cell that is such a word."""
    return TONES.get(cell) if isinstance(cell, str) else None
