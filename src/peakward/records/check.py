"""Checks what a caller of Python gave: the value comes back, or one line says what was expected."""

import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from peakward.records.codec import as_read_back
from peakward.records.errors import PeakwardError, look_up, quoted

R = TypeVar("R", bound=msgspec.Struct)

GIB = 2**30
MAX_DURATION_S = 7 * 86_400.0
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST_TEXT = 4096
"""Characters of a name or a path: as long as a path may be on Linux."""
LONGEST_PART_BYTES = 255
"""Bytes of one name in a path, on the file systems that are in use."""


def text(value: object, name: str) -> str:
    """Text, whatever is in it."""
    if not isinstance(value, str):
        raise PeakwardError(f"expected text for {name}, got {quoted(value)}: give it as a str")
    return value


def line(value: object, name: str) -> str:
    """Text that can stand in a line."""
    value = text(value, name)
    if not value or len(value) > LONGEST_TEXT or not value.isprintable():
        raise PeakwardError(
            f"expected 1 to {LONGEST_TEXT:,} printable characters for {name}, got {quoted(value)}: "
            "give another text"
        )
    return value


def texts(values: object, name: str, what: str) -> tuple[str, ...]:
    """Each text of an iterable; one text alone is none."""
    if isinstance(values, str):
        raise PeakwardError(
            f"expected a sequence of {what}, got {quoted(values)}: write ({quoted(values)},)"
        )
    return tuple(line(each, name) for each in items(values, what))


def items(values: object, what: str) -> tuple[Any, ...]:
    """The items of an iterable that is neither text, bytes nor a mapping."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise PeakwardError(
            f"expected a sequence of {what}, got {quoted(values)}: give a list or a tuple"
        )
    return tuple(values)


def one_of(value: object, names: Iterable[str], kind: str) -> str:
    """`value` where it is one of `names`; `kind` has its article: "a pass"."""
    known = {name: name for name in names}
    if not isinstance(value, str):
        raise PeakwardError(f"expected {kind}, got {quoted(value)}: there are {', '.join(known)}")
    return look_up(kind, value, known)


def whole(value: object, name: str, *, low: int, high: int) -> int:
    """A whole number between two bounds, both allowed; another package's integer becomes a plain one."""
    number = _integer(value)
    if number is None or not low <= number <= high:
        hint = ": give it as a number" if isinstance(value, str | bytes | bool) else ""
        raise PeakwardError(
            f"expected a whole number from {low:,} to {high:,} for {name}, got {quoted(value)}{hint}"
        )
    return number


def memory_bytes(value: object, name: str) -> int:
    """A size of memory in bytes, from 1 MiB."""
    return whole(value, name, low=2**20, high=2**50)


def number(value: object, name: str, what: str, *, low: float, high: float) -> float:
    """A finite number between two bounds, both allowed."""
    found = real(value)
    if found is None or not low <= found <= high:
        raise PeakwardError(f"expected {what} for {name}, got {quoted(value)}: give it as a number")
    return found


def share(value: object, name: str, *, example: str = "0.03") -> float:
    """A part of one, below the whole."""
    found = real(value)
    if found is None or not 0.0 <= found < 1.0:
        raise PeakwardError(
            f"expected a share from 0 to below 1 for {name}, got {quoted(value)}: for example {example}"
        )
    return found


def amount(value: object, name: str, *, high: float) -> float:
    """A sum of money, 0 or more."""
    found = real(value)
    if found is None or not 0.0 <= found <= high:
        raise PeakwardError(
            f"expected an amount from 0 to {high:,.0f} for {name}, got {quoted(value)}: for example 2.5"
        )
    return found


def rate(value: object, name: str) -> float:
    """A number above 0."""
    found = real(value)
    if found is None or found <= 0:
        raise PeakwardError(
            f"expected {name} above 0, got {quoted(value)}: give a finite number, or leave it out"
        )
    return found


def duration_s(text: str, name: str) -> float:
    """Seconds of "90", "90s", "5m" or "1h"."""
    match = re.fullmatch(r"([0-9.]{1,20})\s*([smh]?)", text.strip())
    try:
        seconds = float(match[1]) * _SECONDS[match[2]] if match else math.nan
    except ValueError:
        seconds = math.nan
    if not 1.0 <= seconds <= MAX_DURATION_S:
        raise PeakwardError(
            f"expected a time from 1s to 168h for {name}, got {quoted(text)}: for example 90s, 5m or 1h"
        )
    return seconds


def real(value: object) -> float | None:
    """The finite number that it is, or None."""
    if isinstance(value, bool | str | bytes) or not (
        hasattr(value, "__float__") or hasattr(value, "__index__")
    ):
        return None
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return found if math.isfinite(found) else None


def flag(value: object, name: str) -> bool:
    """True or False themselves: text that says either is neither."""
    if not isinstance(value, bool):
        raise PeakwardError(f"expected True or False for {name}, got {quoted(value)}")
    return value


def function(value: object, name: str, what: str) -> Callable[..., Any]:
    """A value that can be called."""
    if not callable(value):
        raise PeakwardError(f"expected {what} for {name}, got {quoted(value)}")
    return value


def path(value: object, name: str, advice: str = "give text or a pathlib.Path") -> Path:
    """A place that a file system can have, whether something is there or not."""
    try:
        given = os.fspath(value)  # type: ignore[call-overload]
        known = isinstance(given, str) and 0 < len(given) <= LONGEST_TEXT and "\0" not in given
        found = Path(given) if known else None
        longest = max((len(os.fsencode(part)) for part in found.parts), default=0) if found else 0
    except (TypeError, UnicodeEncodeError):
        found, longest = None, 0
    if found is None or longest > LONGEST_PART_BYTES:
        raise PeakwardError(f"expected a path for {name}, got {quoted(value)}: {advice}")
    return found


def record(value: object, kind: type[R], what: str, hint: str) -> R:
    """A record of that kind, whose every field is of its own type."""
    if not isinstance(value, kind):
        raise PeakwardError(f"expected {what}, got {quoted(value)}: {hint}")
    return as_read_back(value)


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):
        return None
