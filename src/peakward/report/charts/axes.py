"""The frame of line plots and rooflines: grid, ticks and labels."""

import itertools
from xml.etree import ElementTree as ET

import msgspec

from peakward.records.study import Plot, Point, Unit
from peakward.report.charts import scale
from peakward.report.charts.canvas import LINE, line, text, width_of
from peakward.report.charts.scale import Scale, tick_label

PIXELS_PER_X_TICK, PIXELS_PER_Y_TICK = 72, 44


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The rectangle of the data, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


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
    make = scale.log if plot.log_y else scale.linear
    most = max(2, int((frame.bottom - frame.top) / PIXELS_PER_Y_TICK))
    return make(values, frame.bottom, frame.top, unit=_unit(plot.y_unit), most_ticks=most)


def _x_scale(plot: Plot, points: list[Point], frame: Frame) -> Scale:
    make = scale.log if plot.log_x else scale.spanning
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
