"""Line plots with marks and intervals, and rooflines: ceilings, and roofline points under them."""

import itertools
from xml.etree import ElementTree as ET

from peakward.records.study import Plot, Point, Series
from peakward.report.charts.axes import Axes, Frame, LabelRoom, axes, has_own_ticks
from peakward.report.charts.canvas import (
    LINE,
    Anchor,
    canvas,
    colour,
    legend,
    line,
    marker,
    path,
    stroke,
    text,
    width_of,
)
from peakward.report.format import format_cell
from peakward.report.plots import places, roofs

MOST_MARKS = 40
"""A line with more points is drawn without marks and intervals, which would hide it."""
WIDE = 560
"""From this width on, lines are named at their ends instead of in a legend."""
HEIGHT = 340
MOST_NAMES = 15
"""The number of text lines that fill the frame's height."""
SAMPLE = 18
"""Pixels of a line sample before its name, because a line's end may lie far from its name."""


def draw_lines(plot: Plot, width: float) -> ET.Element:
    """A `lines` plot."""
    root = canvas(width, HEIGHT, plot.title, describe(plot))
    series = [(index, each) for index, each in enumerate(plot.series) if each.points]
    names = [(index, each.name) for index, each in series]
    at_ends = width >= WIDE and 1 < len(series) <= MOST_NAMES
    right = max(width_of(name) for _, name in names) + 16 + SAMPLE if at_ends else 16
    used = 0.0 if at_ends or len(series) == 1 else legend(root, names, 0, 14, width)
    frame = Frame(left=0, top=used + 2 * LINE, right=width - right, bottom=HEIGHT - 3 * LINE)
    found = axes(root, plot, frame)
    for index, each in series:
        _draw_series(root, plot, found, index, each)
    if at_ends:
        _name_ends(root, found, series)
    if not has_own_ticks(found, plot):
        _name_points(root, found, series)
    return root


def describe(plot: Plot) -> str:
    """The text for readers who cannot see the drawing: the axes, and each series' first and last point."""
    parts = [
        f"{each.name}: {_point(each.points[0], plot)} to {_point(each.points[-1], plot)}"
        for each in plot.series
        if each.points
    ]
    return f"{plot.y_label} by {plot.x_label}. {'; '.join(parts)}."


def _draw_series(root: ET.Element, plot: Plot, found: Axes, index: int, series: Series) -> None:
    points = sorted(series.points, key=lambda point: point.x)
    path(root, [found.place(point) for point in points], stroke(index))
    marked = points if len(points) <= MOST_MARKS else ()
    for point in marked:
        x, y = found.place(point)
        if point.low is not None and point.high is not None:
            low, high = found.y.at(point.low), found.y.at(point.high)
            line(root, (x, low), (x, high), f"whisker {colour(index)}")
        marker(root, x, y, index, f"{series.name}, {_point(point, plot)}")


def _name_ends(root: ET.Element, found: Axes, series: list[tuple[int, Series]]) -> None:
    """Write each name behind a sample of its line, at the line's last point or as near as other names
    allow."""
    ends = sorted(
        (found.place(max(each.points, key=lambda p: p.x))[::-1], index, each.name)
        for index, each in series
    )
    baselines = spread([y + 4 for (y, _), _, _ in ends], found.frame.bottom)
    for ((_, x), index, name), y in zip(ends, baselines, strict=True):
        line(root, (x + 8, y - 4), (x + 4 + SAMPLE, y - 4), stroke(index))
        text(root, x + 10 + SAMPLE, y, name, style=f"name {colour(index)}")


def _name_points(root: ET.Element, found: Axes, series: list[tuple[int, Series]]) -> None:
    """Write each point's own name above its mark where the axis has no room. Names that all points at one
    place share are left to the axis."""
    places = [point.x for _, each in series for point in each.points]
    if len(set(places)) < len(places):
        return
    room = LabelRoom(found.frame)
    for _, each in series:
        for point in each.points:
            if point.label is not None:
                x, y = found.place(point)
                half = width_of(point.label) / 2
                at = room.take(x - half, x + half, y - 8)
                text(root, x, at, point.label, anchor="middle", style="point")


def spread(wanted: list[float], bottom: float) -> list[float]:
    """Baselines near the wanted ones, which ascend. They are at least a line apart, and none lies below the
    bottom."""
    down = list(itertools.accumulate(wanted, lambda above, y: max(y, above + LINE)))
    up = itertools.accumulate(
        reversed(down), lambda below, y: min(y, below - LINE), initial=bottom + LINE
    )
    return list(up)[:0:-1]


def _point(point: Point, plot: Plot) -> str:
    x_unit = "count" if plot.x_unit == "text" else plot.x_unit
    x = point.label or format_cell(point.x, x_unit)
    return f"{format_cell(point.y, plot.y_unit)} at {x}"


ROOFLINE_HEIGHT = 360
ROOFLINE_WIDE = 560
"""From this width on, points are named beside their marks."""
FEW = 3
"""Up to this many points are named beside their marks at any width."""


def draw_roofline(plot: Plot, width: float) -> ET.Element:
    """A `roofline` plot on logarithmic axes. Series without labels are roofs, the others are points."""
    root = canvas(width, ROOFLINE_HEIGHT, plot.title, _describe(plot))
    marks = [(index, point) for index, place in enumerate(places(plot)) for point in place.points]
    beside = width >= ROOFLINE_WIDE or len(marks) <= FEW
    names = [] if beside else [(index, _name(point, plot)) for index, point in marks]
    used = legend(root, names, 0, 14, width)
    frame = Frame(left=0, top=used + 2 * LINE, right=width - 12, bottom=ROOFLINE_HEIGHT - 3 * LINE)
    found = axes(root, plot, frame)
    room = LabelRoom(found.frame)
    for index, roof in enumerate(roofs(plot)):
        _draw_roof(root, plot, found, index, roof, room=room)
    for index, point in marks:
        label = _name(point, plot)
        where = f"{label} at {format_cell(point.x, 'count')} FLOP/byte"
        marker(root, *found.place(point), index, where)
        if beside:
            _name_place(root, found, index, point, label, room=room)
    return root


def _name(point: Point, plot: Plot) -> str:
    return f"{point.label}, {format_cell(point.y, plot.y_unit)}"


def _draw_roof(
    root: ET.Element, plot: Plot, found: Axes, index: int, roof: Series, *, room: LabelRoom
) -> None:
    corners = [found.place(point) for point in roof.points]
    path(root, corners, f"roof roof{index % 3}")
    name = f"{roof.name}, {format_cell(roof.points[-1].y, plot.y_unit)}"
    if index == 0:
        _name_slope(root, found, roof, room)
    right, y = found.frame.right - 2, corners[-1][1] - 6
    room.claim(right - width_of(name), right, y)
    text(root, right, y, name, anchor="end", style="name")


def _name_slope(root: ET.Element, found: Axes, roof: Series, room: LabelRoom) -> None:
    """Write the bandwidth at the middle of the slope: FLOP/s over FLOP/byte is bytes per second."""
    foot, ridge = roof.points[0], roof.points[1]
    (x1, y1), (x2, y2) = found.place(foot), found.place(ridge)
    bandwidth = format_cell(foot.y / foot.x, "bytes_per_s")
    left, y = (x1 + x2) / 2 + 12, (y1 + y2) / 2 + 10
    room.claim(left, left + width_of(bandwidth), y)
    text(root, left, y, bandwidth, style="name")


def _name_place(
    root: ET.Element, found: Axes, index: int, point: Point, label: str, *, room: LabelRoom
) -> None:
    x, y = found.place(point)
    width = width_of(label)
    left, anchor = _beside(x, width, found.frame.right)
    low = y + LINE > found.frame.bottom
    text(
        root,
        left if anchor == "start" else left + width,
        room.take(left, left + width, y - 8 if low else y + 14),
        label,
        anchor=anchor,
        style=f"name {colour(index)}",
    )


def _beside(x: float, width: float, right: float) -> tuple[float, Anchor]:
    """The start of a label of that width, and its anchor: behind its mark, before it, or at the drawing's
    edge where neither side has room, as on a phone."""
    if x + 10 + width <= right:
        return x + 10, "start"
    return (x - 10 - width, "end") if x - 10 - width >= 0 else (0.0, "start")


def _describe(plot: Plot) -> str:
    parts = [
        f"{roof.name} at {format_cell(roof.points[-1].y, plot.y_unit)}" for roof in roofs(plot)
    ]
    parts += [
        f"{point.label} at {format_cell(point.y, plot.y_unit)}, {format_cell(point.x, 'count')} FLOP/byte"
        for place in places(plot)
        for point in place.points
    ]
    return f"{plot.y_label} by {plot.x_label}. {'; '.join(parts)}."
