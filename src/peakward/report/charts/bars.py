"""Horizontal bars with their intervals, and limits marked on them."""

from xml.etree import ElementTree as ET

import msgspec

from peakward.records.measurement import Interval
from peakward.records.study import Plot, Point
from peakward.report.charts import axes, canvas
from peakward.report.charts.axes import Linear
from peakward.report.charts.canvas import LINE, box, colour, line, text, width_of
from peakward.report.format import format_cell, format_spread
from peakward.report.plots import marks, measured

BAR, BAR_GAP, GROUP_GAP = 16, 3, 9


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar: the index of its series, its point, and its marked limit."""

    index: int
    series: str
    point: Point
    limit: float | None


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The positions of the plot's parts, in pixels."""

    width: float
    height: float
    top: float
    x: Linear
    names_beside: bool
    """Whether names stand beside the bars. In a narrow drawing a long name stands above its bars."""


def draw_bars(plot: Plot, width: float) -> ET.Element:
    """A `bars` plot: a group of bars for each label, with one bar for each series."""
    groups = _groups(plot)
    layout = _layout(plot, groups, width)
    root = canvas.canvas(width, layout.height, plot.title, _describe(plot, groups))
    _legend(root, plot, width)
    _grid(root, plot, layout)
    top = layout.top
    for label, bars in groups.items():
        if not layout.names_beside:
            text(root, 0, top + 9, label)
            top += LINE
        else:
            middle = top + len(bars) * (BAR + BAR_GAP) / 2
            text(root, layout.x.start - 10, middle + 3, label, anchor="end")
        for bar in bars:
            _bar(root, plot, layout, bar, top)
            top += BAR + BAR_GAP
        top += GROUP_GAP
    return root


def _groups(plot: Plot) -> dict[str, list[Bar]]:
    """The bars of each label, in the labels' order on x."""
    limits = {point.label: point.y for each in marks(plot) for point in each.points}
    # Points have no order of their own: a study may have two at one place.
    placed = sorted(
        (
            (point.x, index, each.name, point)
            for index, each in enumerate(measured(plot))
            for point in each.points
        ),
        key=lambda each: each[:3],
    )
    groups: dict[str, list[Bar]] = {}
    for x, index, name, point in placed:
        label = point.label if point.label is not None else format_cell(x, "count")
        bar = Bar(index=index, series=name, point=point, limit=limits.get(point.label))
        groups.setdefault(label, []).append(bar)
    return groups


def _layout(plot: Plot, groups: dict[str, list[Bar]], width: float) -> Layout:
    bars = [bar for each in groups.values() for bar in each]
    names = max(map(width_of, groups))
    beside = names < width * 0.3
    values = max(width_of(_value(bar.point, plot)) for bar in bars)
    left = names + 10 if beside else 0
    room = width - left - values - 14
    ends = [end for bar in bars for end in (bar.point.y, bar.point.high, bar.limit)]
    named = _legend_places(plot, width)
    top = named[-1][1] + 2 * LINE if named else 6
    body = len(bars) * (BAR + BAR_GAP) + len(groups) * (GROUP_GAP + (0 if beside else LINE))
    return Layout(
        width=width,
        height=top + body + 2.5 * LINE,
        top=top,
        x=axes.from_zero(
            (end for end in ends if end is not None),
            left,
            left + room,
            unit=plot.y_unit,
            most_ticks=max(2, int(room / 80)),
        ),
        names_beside=beside,
    )


def _legend_places(plot: Plot, width: float) -> list[canvas.Pixel]:
    """The upper left corner of each series' entry, wrapped over lines. A single series has no legend."""
    found: list[canvas.Pixel] = []
    left = top = 0.0
    for each in (*measured(plot), *marks(plot)):
        needed = width_of(each.name) + 18
        if found and left + needed > width:
            left, top = 0.0, top + LINE + 4
        found.append((left, top))
        left += needed + 18
    return found if len(found) > 1 else []


def _legend(root: ET.Element, plot: Plot, width: float) -> None:
    series = (*measured(plot), *marks(plot))
    for index, (each, (left, top)) in enumerate(
        zip(series, _legend_places(plot, width), strict=False)
    ):
        if index < len(measured(plot)):
            box(root, (left, top + 3), (12, 10), f"bar {colour(index)}")
            text(root, left + 18, top + 12, each.name)
        else:
            box(root, (left + 2, top), (4, 16), "limit")
            text(root, left + 12, top + 12, each.name)


def _grid(root: ET.Element, plot: Plot, layout: Layout) -> None:
    bottom = layout.height - 2.2 * LINE
    for value in layout.x.ticks():
        x = layout.x.at(value)
        line(root, (x, layout.top - 4), (x, bottom), "grid")
        anchor: canvas.Anchor = "start" if x < LINE else "middle"
        text(root, x, bottom + 14, axes.tick_label(value, plot.y_unit), anchor=anchor, style="tick")
    text(root, layout.x.end, bottom + 14 + LINE, plot.y_label, anchor="end", style="axis")


def _bar(root: ET.Element, plot: Plot, layout: Layout, bar: Bar, top: float) -> None:
    point, x = bar.point, layout.x
    end = x.at(point.y)
    box(root, (x.at(0), top), (end - x.at(0), BAR), f"bar {colour(bar.index)}")
    middle = top + BAR / 2
    furthest = end
    if point.low is not None and point.high is not None:
        line(root, (x.at(point.low), middle), (x.at(point.high), middle), "interval")
        for side in (point.low, point.high):
            line(root, (x.at(side), middle - 4), (x.at(side), middle + 4), "interval")
        furthest = x.at(point.high)
    if bar.limit is not None:
        limit = x.at(bar.limit)
        box(root, (limit - 2, top - 3), (4, BAR + 6), "limit")
        furthest = max(furthest, limit)
    text(root, furthest + 7, middle + 4, _value(point, plot), style="value")


def _value(point: Point, plot: Plot) -> str:
    return format_cell(point.y, plot.y_unit)


def _describe(plot: Plot, groups: dict[str, list[Bar]]) -> str:
    several = len(measured(plot)) > 1
    parts = []
    for label, bars in groups.items():
        for bar in bars:
            name = f"{label}, {bar.series}" if several else label
            parts.append(f"{name}: {_with_interval(bar.point, plot)}")
            if bar.limit is not None:
                parts[-1] += f", {marks(plot)[0].name} {format_cell(bar.limit, plot.y_unit)}"
    return f"{plot.y_label}. {'; '.join(parts)}."


def _with_interval(point: Point, plot: Plot) -> str:
    if point.low is None or point.high is None:
        return _value(point, plot)
    interval = Interval(estimate=point.y, low=point.low, high=point.high)
    return format_spread(interval, plot.y_unit)
