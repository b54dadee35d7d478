"""The frame of line plots and rooflines: scales from values to pixels, grid, ticks, and room for labels."""

import itertools
import math
from collections.abc import Iterable
from typing import Protocol
from xml.etree import ElementTree as ET

import msgspec

from peakward.records.study import Plot, Point, Unit
from peakward.report.charts.canvas import LINE, line, text, width_of
from peakward.report.format import SCALES, format_cell

PIXELS_PER_X_TICK, PIXELS_PER_Y_TICK = 72, 44
FEWEST = 3
"""Steps that an axis is cut into at least. Made round, a step grows by up to 2.5 times: of two none might be
inside."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The rectangle of the data, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


class Scale(Protocol):
    """One axis."""

    def at(self, value: float) -> float:
        """The pixel of a value."""

    def ticks(self) -> tuple[float, ...]:
        """Round values inside the axis, in order."""


class Axes(msgspec.Struct, frozen=True, kw_only=True):
    """A frame and its two scales."""

    frame: Frame
    x: Scale
    y: Scale

    def place(self, point: Point) -> tuple[float, float]:
        """The pixel of a point."""
        return self.x.at(point.x), self.y.at(point.y)


def axes(root: ET.Element, plot: Plot, frame: Frame) -> Axes:
    """Draw grid, ticks and labels; return the scales for the points.

    The labels of the y axis take their room from the frame's left.
    """
    points = [point for each in plot.series for point in each.points]
    y = _y_scale(plot, points, frame)
    labels = max(width_of(tick_label(value, _unit(plot.y_unit))) for value in y.ticks())
    frame = msgspec.structs.replace(frame, left=frame.left + labels + 10)
    found = Axes(frame=frame, x=_x_scale(plot, points, frame), y=y)
    _draw_y(root, found, plot)
    _draw_x(root, found, plot, points)
    return found


def _y_scale(plot: Plot, points: list[Point], frame: Frame) -> Scale:
    values = [value for p in points for value in (p.y, p.low, p.high) if value is not None]
    make = log if plot.log_y else linear
    most = max(2, int((frame.bottom - frame.top) / PIXELS_PER_Y_TICK))
    return make(values, frame.bottom, frame.top, unit=_unit(plot.y_unit), most_ticks=most)


def _x_scale(plot: Plot, points: list[Point], frame: Frame) -> Scale:
    make = log if plot.log_x else spanning
    most = max(2, int((frame.right - frame.left) / PIXELS_PER_X_TICK))
    values = [point.x for point in points]
    return make(values, frame.left, frame.right, unit=_unit(plot.x_unit), most_ticks=most)


def _draw_y(root: ET.Element, found: Axes, plot: Plot) -> None:
    frame = found.frame
    for value in found.y.ticks():
        y = found.y.at(value)
        line(root, (frame.left, y), (frame.right, y), "grid")
        label = tick_label(value, _unit(plot.y_unit))
        text(root, frame.left - 8, y + 4, label, anchor="end", style="tick")
    text(root, 0, frame.top - LINE, plot.y_label, style="axis")


def _draw_x(root: ET.Element, found: Axes, plot: Plot, points: list[Point]) -> None:
    frame = found.frame
    line(root, (frame.left, frame.bottom), (frame.right, frame.bottom), "base")
    for value, label in _x_ticks(found, plot, points):
        x = found.x.at(value)
        line(root, (x, frame.bottom), (x, frame.bottom + 4), "base")
        text(root, x, frame.bottom + 18, label, anchor="middle", style="tick")
    text(root, frame.right, frame.bottom + 18 + LINE, plot.x_label, anchor="end", style="axis")


def has_own_ticks(found: Axes, plot: Plot) -> bool:
    """Whether the x axis shows the data's own values, or the points' names."""
    points = [point for each in plot.series for point in each.points]
    return plot.kind == "lines" and _apart(_own_ticks(plot, points), found.x)


def _x_ticks(found: Axes, plot: Plot, points: list[Point]) -> list[tuple[float, str]]:
    """The data's own values where their labels do not touch, else the scale's ticks."""
    if has_own_ticks(found, plot):
        return _own_ticks(plot, points)
    return [(value, tick_label(value, _unit(plot.x_unit))) for value in found.x.ticks()]


def _own_ticks(plot: Plot, points: list[Point]) -> list[tuple[float, str]]:
    names = {point.x: point.label for point in points if point.label}
    return [
        (x, names.get(x) or tick_label(x, _unit(plot.x_unit)))
        for x in sorted({point.x for point in points})
    ]


def _apart(ticks: list[tuple[float, str]], x: Scale) -> bool:
    return all(
        x.at(b[0]) - x.at(a[0]) > (width_of(a[1]) + width_of(b[1])) / 2 + 8
        for a, b in itertools.pairwise(ticks)
    )


def _unit(unit: Unit) -> Unit:
    """A coordinate is a plain number, whatever unit its column has."""
    return "count" if unit == "text" else unit


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
    step = _nice_step((high - low) / max(FEWEST, most_ticks), unit)
    return Linear(low=low, high=high, start=start, end=end, step=step)


def log(values: Iterable[float], start: float, end: float, *, unit: Unit, most_ticks: int) -> Log:
    """A logarithmic scale slightly wider than the positive values, with ticks at powers of ten (of two for
    bytes), or at even steps where fewer than two of them lie within a decade."""
    known = [value for value in values if value > 0]
    margin = (max(known) / min(known)) ** 0.04 if max(known) > min(known) else 1.5
    low, high = min(known) / margin, max(known) * margin
    marks = (
        _powers_of_two(low, high, most_ticks)
        if unit == "bytes"
        else _decades(low, high, most_ticks)
    )
    if len(marks) < 2 and high < 10 * low:
        step = _nice_step((high - low) / max(FEWEST, most_ticks), unit)
        marks = Linear(low=low, high=high, start=start, end=end, step=step).ticks()
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


MOST_LINES = 8
"""The longest distance in lines. A label farther from its mark is not read as belonging to it."""


class LabelRoom:
    """The free room in a frame for lines of text."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._taken: list[tuple[float, float, float]] = []

    def take(self, left: float, right: float, y: float) -> float:
        """The baseline for a text from `left` to `right`: `y`, or the nearest free line above or below. It is
        `y` where every near line is taken."""
        lines = sorted(range(-MOST_LINES, MOST_LINES + 1), key=lambda each: (abs(each), -each))
        found = next((at for n in lines if self._is_free(left, right, at := y + n * LINE)), y)
        self.claim(left, right, found)
        return found

    def claim(self, left: float, right: float, y: float) -> None:
        """Take the room of a text with a fixed place."""
        self._taken.append((left, right, y))

    def _is_free(self, left: float, right: float, y: float) -> bool:
        if not self._frame.top < y < self._frame.bottom:
            return False
        return not any(
            left < other_right and other_left < right and abs(y - other_y) < LINE
            for other_left, other_right, other_y in self._taken
        )
