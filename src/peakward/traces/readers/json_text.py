"""JSON text of traces: exact times, an array's exact elements, repairs of invalid text.

PyTorch writes times as integers, decimals with nanoseconds (4458676522690.655) and, in some releases,
microseconds since 1970 with nanoseconds (1712195495505582.988), which no float64 holds.
"""

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

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


_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_SLICE = 1 << 20
"""Limits the memory of the masks; a slice takes 10 ms."""


class Elements(NamedTuple):
    """The elements in the text of an array, from one of its elements on."""

    commas: list[int]
    """Positions of the commas between elements."""
    close: int | None
    """The position of the array's closing bracket; None if the text ends before it."""


def elements(text: bytes) -> Elements:
    """Find the elements by following strings and nesting byte by byte, so that no name can mislead it."""
    # Outside strings JSON has no backslashes, so pairing them from the left is exact.
    plain = _ESCAPE.sub(b"__", text) if b"\\" in text else text
    codes = np.frombuffer(plain, np.uint8)
    commas: list[int] = []
    in_string, depth = False, 0
    for start in range(0, len(codes), _SLICE):
        part = codes[start : start + _SLICE]
        inside = np.logical_xor.accumulate(part == ord('"')) ^ in_string
        in_string = bool(inside[-1])
        found = np.flatnonzero(_is_structural(part) & ~inside)
        kinds = part[found]
        steps = np.zeros(len(found), np.int64)
        steps[(kinds == ord("{")) | (kinds == ord("["))] = 1
        steps[(kinds == ord("}")) | (kinds == ord("]"))] = -1
        depths = depth + np.cumsum(steps)
        closings = np.flatnonzero(depths < 0)
        end = int(closings[0]) if len(closings) else len(found)
        is_comma = (kinds[:end] == ord(",")) & (depths[:end] == 0)
        commas += (found[:end][is_comma] + start).tolist()
        if len(closings):
            return Elements(commas, start + int(found[end]))
        depth = int(depths[-1]) if len(found) else depth
    return Elements(commas, None)


def _is_structural(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    # { and [ differ by one bit, as do } and ].
    folded = codes & 0xDF
    found: NDArray[np.bool_] = (folded == ord("[")) | (folded == ord("]")) | (codes == ord(","))
    return found


_BARE = re.compile(rb'("(?:[^"\\]|\\.)*+")|-?\b(?:NaN|nan|Infinity|infinity|inf)\b', re.DOTALL)
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)', re.DOTALL)
_SURROGATES = re.compile(
    rb"\\\\|(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_CONTROL = re.compile(rb"[\x00-\x1f]")


def repaired(text: bytes) -> bytes:
    """Valid JSON: invalid numbers become null; half surrogates and invalid UTF-8 become U+FFFD; control
    characters in strings become spaces; a backslash that escapes nothing stands for itself."""
    text = text.decode("utf-8", "replace").encode()
    text = _CONTROL.sub(b" ", text)
    text = _BARE.sub(lambda match: match[1] or b"null", text)
    text = _BAD_ESCAPE.sub(lambda match: match[0] if match[1] else b"\\\\", text)
    return _SURROGATES.sub(_whole_surrogate, text)


def _whole_surrogate(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] or match[0] == b"\\\\" else b"\\ufffd"
