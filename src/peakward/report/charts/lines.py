"""Lines with their marks and intervals."""

from xml.etree import ElementTree as ET

from peakward.records.study import Plot, Point, Series
from peakward.report.charts.axes import Axes, Frame, axes, has_own_ticks
from peakward.report.charts.canvas import (
    LINE,
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
from peakward.report.charts.label_room import LabelRoom
from peakward.report.format import format_cell

MOST_MARKS = 40
"""A line of more points is drawn without marks and intervals, which would hide it."""
WIDE = 560
"""From this width on, a line is named at its end instead of in a legend."""


def draw_lines(plot: Plot, width: float) -> ET.Element:
    """A `lines` plot."""
    root = canvas(width, 340, plot.title, describe(plot))
    series = [(index, each) for index, each in enumerate(plot.series) if each.points]
    names = [(index, each.name) for index, each in series]
    at_ends = width >= WIDE and len(series) > 1
    right = max(width_of(name) for _, name in names) + 16 if at_ends else 16
    used = 0.0 if at_ends or len(series) == 1 else legend(root, names, 0, 14, width)
    frame = Frame(left=0, top=used + 2 * LINE, right=width - right, bottom=340 - 3 * LINE)
    found = axes(root, plot, frame)
    for index, each in series:
        _draw_series(root, plot, found, index, each)
    if at_ends:
        _name_ends(root, found, series)
    if not has_own_ticks(found, plot):
        _name_points(root, found, series)
    return root


def describe(plot: Plot) -> str:
    """What a reader who cannot see the drawing needs: the axes, and where each series begins and ends."""
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
    """Each name beside its line's last point, pushed apart where two would touch: down, and from the
    foot of the frame up."""
    ends = sorted(
        (found.place(max(each.points, key=lambda p: p.x))[::-1], index, each.name)
        for index, each in series
    )
    baselines = _apart([y + 4 for (y, _), _, _ in ends], found.frame.bottom)
    for ((_, x), index, name), baseline in zip(ends, baselines, strict=True):
        text(root, x + 10, baseline, name, style=f"name {colour(index)}")


def _name_points(root: ET.Element, found: Axes, series: list[tuple[int, Series]]) -> None:
    """Each point's own name above its mark, where the axis has no room for it: of names that belong to
    one point, not to all at a place of the axis."""
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


def _apart(wanted: list[float], bottom: float) -> list[float]:
    """Ascending baselines, a line apart: down from the top, then up again where some came to lie below
    the bottom."""
    found: list[float] = []
    for y in wanted:
        found.append(max(y, (found[-1] if found else 0.0) + LINE))
    below = max(bottom, LINE * len(found))
    for i in reversed(range(len(found))):
        found[i] = min(found[i], below)
        below = found[i] - LINE
    return found


def _point(point: Point, plot: Plot) -> str:
    x_unit = "count" if plot.x_unit == "text" else plot.x_unit
    x = point.label or format_cell(point.x, x_unit)
    return f"{format_cell(point.y, plot.y_unit)} at {x}"
