"""Roofline plots: ceilings, and roofline points under them."""

from xml.etree import ElementTree as ET

from peakward.records.study import Plot, Point, Series
from peakward.report.charts.axes import Axes, Frame, axes
from peakward.report.charts.canvas import (
    LINE,
    Anchor,
    canvas,
    colour,
    legend,
    marker,
    path,
    text,
    width_of,
)
from peakward.report.charts.label_room import LabelRoom
from peakward.report.format import format_cell
from peakward.report.plot_parts import places, roofs

HEIGHT = 360
WIDE = 560
"""From this width on, points are named beside their marks."""
FEW = 3
"""Up to this many points are named beside their marks at any width."""


def draw_roofline(plot: Plot, width: float) -> ET.Element:
    """A `roofline` plot on logarithmic axes. Series without labels are roofs, the others are points."""
    root = canvas(width, HEIGHT, plot.title, _describe(plot))
    marks = [(index, point) for index, place in enumerate(places(plot)) for point in place.points]
    beside = width >= WIDE or len(marks) <= FEW
    names = [] if beside else [(index, _name(point, plot)) for index, point in marks]
    used = legend(root, names, 0, 14, width)
    frame = Frame(left=0, top=used + 2 * LINE, right=width - 12, bottom=HEIGHT - 3 * LINE)
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
