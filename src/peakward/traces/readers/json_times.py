"""Times of a Chrome trace, microseconds in JSON, to integer nanoseconds.

PyTorch writes integers, decimals with nanoseconds (4458676522690.655) and, in some releases,
microseconds since 1970 with nanoseconds (1712195495505582.988), which no float64 holds.
"""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np

from peakward.traces.table import Ints

ABSURD = np.iinfo(np.int64).min
"""Replaces a time that is not a number or lies beyond ±2**62 ns (146 years)."""

_MAX_NS = 2**62
_MAX_US = Decimal(_MAX_NS) / 1000
_FLOAT_HOLDS_NS_US = 2.0**43
"""Below it float64 is spaced by at most 2**-10 µs, so the nearest double is within 0.49 ns."""


def nanoseconds(microseconds: Sequence[float]) -> Ints | None:
    """Decoded times, at least one, to the nearest nanosecond. None where they may have lost digits, so that
    `nanoseconds_of_text` must decode them.

    Digits beyond the third decimal show because the rounded time, divided again, is another double. From
    2**42 µs on, where doubles are 0.98 ns apart, such a time can come out 1 ns off.
    """
    try:
        values = np.array(microseconds)
    except OverflowError:
        return None
    if values.dtype == np.int64:
        if max(-int(values.min()), int(values.max())) > _MAX_US:
            return None
        return values * 1000
    if values.dtype != np.float64 or np.abs(values).max() >= _FLOAT_HOLDS_NS_US:
        return None
    whole = np.floor(values)
    rounded = whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
    return rounded if np.array_equal(rounded / 1000, values) else None


def nanoseconds_of_text(microseconds: Sequence[msgspec.Raw]) -> Ints:
    """Times from the JSON text of each number, of any size, rounded half to even. Text that is not a number
    gives ABSURD."""
    return np.array([_of_text(bytes(each)) for each in microseconds], np.int64)


def _of_text(text: bytes) -> int:
    whole, _, decimals = text.partition(b".")
    # Ten times as fast as Decimal for the numbers that PyTorch writes; 16 digits reach the year 2286.
    if len(whole) <= 16 and len(decimals) <= 3 and (not decimals or decimals.isdigit()):
        try:
            value_ns = int(whole + decimals.ljust(3, b"0"))
        except ValueError:
            pass
        else:
            return value_ns if abs(value_ns) <= _MAX_NS else ABSURD
    try:
        value = Decimal(text.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError):
        return ABSURD
    if not value.is_finite() or not -_MAX_US <= value <= _MAX_US:
        return ABSURD
    return round(value * 1000)
