"""Scales from values to pixels, with their ticks."""

import math
from collections.abc import Iterable
from typing import Protocol

import msgspec

from peakward.records.study import Unit
from peakward.report.format import SCALES, format_cell


class Scale(Protocol):
    """One axis."""

    def at(self, value: float) -> float:
        """The pixel of a value."""

    def ticks(self) -> tuple[float, ...]:
        """Round values inside the axis, in order."""


class Linear(msgspec.Struct, frozen=True, kw_only=True):
    """A linear scale."""

    low: float
    high: float
    start: float
    end: float
    """The pixels of `low` and `high`."""
    step: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> tuple[float, ...]:
        first = math.ceil(self.low / self.step - 1e-9)
        last = math.floor(self.high / self.step + 1e-9)
        return tuple(self.step * n for n in range(first, last + 1))


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """A logarithmic scale."""

    low: float
    high: float
    start: float
    end: float
    marks: tuple[float, ...]

    def at(self, value: float) -> float:
        span = math.log(self.high / self.low)
        return self.start + math.log(value / self.low) / span * (self.end - self.start)

    def ticks(self) -> tuple[float, ...]:
        return self.marks


def from_zero(
    values: Iterable[float], start: float, end: float, *, unit: Unit, most_ticks: int
) -> Linear:
    """A scale from 0, or from the smallest negative value, to the largest value."""
    known = tuple(values)
    low, high = min(0.0, *known), max(0.0, *known)
    high = high if high > low else low + 1.0
    step = _nice_step((high - low) / most_ticks, unit)
    return Linear(low=low, high=high, start=start, end=end, step=step)


def linear(
    values: Iterable[float], start: float, end: float, *, unit: Unit, most_ticks: int
) -> Linear:
    """The scale of `from_zero`, extended to a whole step at both ends."""
    exact = from_zero(values, start, end, unit=unit, most_ticks=most_ticks)
    return msgspec.structs.replace(
        exact,
        low=math.floor(exact.low / exact.step + 1e-9) * exact.step,
        high=math.ceil(exact.high / exact.step - 1e-9) * exact.step,
    )


def spanning(
    values: Iterable[float], start: float, end: float, *, unit: Unit, most_ticks: int
) -> Linear:
    """A scale from the smallest to the largest value, for an axis that need not show 0."""
    known = tuple(values)
    low, high = min(known), max(known)
    if high - low <= abs(low) * 1e-9:
        high = low + (abs(low) or 1.0)
    step = _nice_step((high - low) / most_ticks, unit)
    return Linear(low=low, high=high, start=start, end=end, step=step)


def log(values: Iterable[float], start: float, end: float, *, unit: Unit, most_ticks: int) -> Log:
    """A logarithmic scale slightly wider than the positive values, with ticks at powers of ten (of two for
    bytes)."""
    known = [value for value in values if value > 0]
    margin = (max(known) / min(known)) ** 0.04 if max(known) > min(known) else 1.5
    low, high = min(known) / margin, max(known) * margin
    marks = (
        _powers_of_two(low, high, most_ticks)
        if unit == "bytes"
        else _decades(low, high, most_ticks)
    )
    return Log(low=low, high=high, start=start, end=end, marks=marks)


def tick_label(value: float, unit: Unit) -> str:
    """A round value without the zeros that three significant figures would add."""
    if unit == "share":
        return f"{value:.3%}".rstrip("%").rstrip("0").rstrip(".") + "%"
    text = format_cell(value, unit)
    number, _, rest = text.partition(" ")
    suffix = number[len(number.rstrip("kM%×")) :]
    digits = number.removesuffix(suffix) if suffix else number
    if "." in digits and "e" not in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"{digits}{suffix} {rest}".strip()


def _nice_step(least: float, unit: Unit) -> float:
    """The smallest step of at least `least` that is 1, 2 or 5 times a power of ten in the printed prefix."""
    size = 1.0
    if unit == "bytes":
        size = next((p.size for p in SCALES["bytes"] if least >= p.size * 0.1), 1.0)
    power = 10.0 ** math.floor(math.log10(least / size))
    return size * next(power * n for n in (1, 2, 5, 10) if power * n * size >= least * (1 - 1e-9))


def _decades(low: float, high: float, most: int) -> tuple[float, ...]:
    """As many of 1, 2, 5 times a power of ten as fit, or every few powers."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        marks = tuple(m for e in exponents for n in steps if low <= (m := n * 10.0**e) <= high)
        if len(marks) <= most:
            return marks
    every = math.ceil(len(exponents) / most)
    return tuple(10.0**e for e in exponents if e % every == 0 and low <= 10.0**e <= high)


def _powers_of_two(low: float, high: float, most: int) -> tuple[float, ...]:
    exponents = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    every = max(1, math.ceil(len(exponents) / most))
    return tuple(2.0**e for e in exponents if e % every == 0)
