"""Plots: the roles of their series, and plots as text, bars of block characters and tables of points."""

import bisect
import math
from collections.abc import Iterable

from peakward.records.measurement import Interval
from peakward.records.study import Cell, Column, Plot, Point, Series, Table
from peakward.report.columns import cut
from peakward.report.format import format_cell, format_spread

FLOOR = "floor"
"""In `bars`, the series of this name is a limit, marked on the bars with the same labels."""


def measured(plot: Plot) -> tuple[Series, ...]:
    """The series of a `bars` plot that are bars."""
    return tuple(each for each in plot.series if each.name != FLOOR)


def marks(plot: Plot) -> tuple[Series, ...]:
    """The series of a `bars` plot that mark limits on bars with the same labels."""
    return tuple(each for each in plot.series if each.name == FLOOR)


def drawable(plots: Iterable[Plot]) -> list[Plot]:
    """The plots with at least one point. Where every case failed, or nothing is finite, a plot has none."""
    return [plot for plot in plots if any(each.points for each in plot.series)]


def ordered(series: tuple[Series, ...]) -> list[tuple[Point, Series]]:
    """The points of all series in the order of x, with points of one x together."""
    pairs = [(point, each) for each in series for point in each.points]
    return sorted(pairs, key=lambda pair: pair[0].x)


def roofs(plot: Plot) -> tuple[Series, ...]:
    """The series of a `roofline` plot that are ceilings, which have no labels."""
    return tuple(each for each in plot.series if all(p.label is None for p in each.points))


def places(plot: Plot) -> tuple[Series, ...]:
    """The series of a `roofline` plot with labelled points under the ceilings."""
    return tuple(each for each in plot.series if any(p.label is not None for p in each.points))


def height(roof: Series, x: float) -> float:
    """The ceiling at x, interpolated between its points on logarithmic axes."""
    xs = [point.x for point in roof.points]
    right = min(max(bisect.bisect_left(xs, x), 1), len(xs) - 1)
    a, b = roof.points[right - 1], roof.points[right]
    slope = math.log(b.y / a.y) / math.log(b.x / a.x)
    return a.y * math.exp(slope * math.log(x / a.x))


EIGHTHS = " ▏▎▍▌▋▊▉"
FLOOR_MARK = "┃"
WIDEST_BAR = 48
MOST_ROWS = 16


def drawn(plot: Plot, width: int) -> tuple[str, ...] | None:
    """A plot that characters can draw, as lines of at most `width`; None where a table tells it."""
    if plot.kind == "bars":
        return bars(plot, width)
    return heat(plot, width) if plot.kind == "heat" else None


SHADES = " ░▒▓█"
NO_VALUE = "×"
"""A cell without a point, which is not a cell of 0."""
LEAST_SHADED = 1e-6
"""A share of the largest value: on a logarithmic scale what is smaller has the lightest shade."""


def shade(plot: Plot, value: float, n: int) -> int:
    """The shade of a cell, from 0 for nothing to n for the plot's largest value."""
    low, high = shaded(plot)
    if value <= 0 or high <= 0:
        return 0
    if not plot.log_y:
        return math.ceil(value / high * n)
    if low == high:
        return n
    return 1 + min(n - 1, max(0, int(math.log(value / low) / math.log(high / low) * n)))


def shaded(plot: Plot) -> tuple[float, float]:
    """The values of the lightest and the darkest shade; 0 where there is none."""
    values = [point.y for each in plot.series for point in each.points if point.y > 0]
    high = max(values, default=0.0)
    return max(min(values, default=0.0), high * LEAST_SHADED), high


def columns(plot: Plot) -> list[tuple[float, str]]:
    """The columns of a `heat` plot: x, and its label or number."""
    found = {p.x: p.label or format_cell(p.x, "count") for each in plot.series for p in each.points}
    return sorted(found.items())


def heat(plot: Plot, width: int) -> tuple[str, ...]:
    """A `heat` plot as lines of at most `width` characters, two a cell where these fit."""
    xs = columns(plot)
    names = min(max(len(each.name) for each in plot.series), width - len(xs) - 2)
    times = 2 if names + 2 + 2 * len(xs) <= width else 1
    lines = []
    for each in plot.series:
        values = {point.x: point.y for point in each.points}
        cells = (
            SHADES[shade(plot, values[x], len(SHADES) - 1)] if x in values else NO_VALUE
            for x, _ in xs
        )
        row = "".join(cell * times for cell in cells)
        lines.append(f"{cut(each.name, names):<{names}}  {row}".rstrip())
    first, last = xs[0][1], xs[-1][1]
    low, high = (format_cell(each, plot.y_unit) for each in shaded(plot))
    lines.append(f"{plot.x_label} {first} to {last}; {plot.y_label} {low} ░ to █ {high}")
    if any(len(each.points) < len(xs) for each in plot.series):
        lines.append(f"{NO_VALUE} no value")
    return tuple(lines)


def bars(plot: Plot, width: int) -> tuple[str, ...]:
    """A `bars` plot as lines of at most `width` characters. A "┃" marks each bar's floor."""
    drawn = measured(plot)
    rows = [(_name(point, each, drawn), point) for point, each in ordered(drawn)]
    names = max(len(name) for name, _ in rows)
    values = [_value(point, plot) for _, point in rows]
    room = min(WIDEST_BAR, max(8, width - names - max(map(len, values)) - 4))
    longest = max(point.y for _, point in rows)
    floors = {point.label: point.y for each in marks(plot) for point in each.points}
    lines = []
    for (name, point), value in zip(rows, values, strict=True):
        bar = _bar(point.y / longest * room).ljust(room)
        if point.label in floors:
            at = min(room - 1, round(floors[point.label] / longest * room))
            bar = bar[:at] + FLOOR_MARK + bar[at + 1 :]
        lines.append(f"{name:<{names}}  {bar}  {value}")
    if floors:
        lines.append(f"{'':<{names}}  {FLOOR_MARK} {marks(plot)[0].name}")
    return tuple(lines)


def table(plot: Plot) -> Table:
    """The points of a `lines` or `roofline` plot."""
    return _roofline_table(plot) if plot.kind == "roofline" else _lines_table(plot)


def _name(point: Point, series: Series, drawn: tuple[Series, ...]) -> str:
    label = point.label or format_cell(point.x, "count")
    return label if len(drawn) == 1 else f"{label}, {series.name}"


def _value(point: Point, plot: Plot) -> str:
    if point.low is None or point.high is None:
        return format_cell(point.y, plot.y_unit)
    interval = Interval(estimate=point.y, low=point.low, high=point.high)
    return format_spread(interval, plot.y_unit)


def _bar(length: float) -> str:
    eighths = round(length * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _lines_table(plot: Plot) -> Table:
    every = sorted({point.x for each in plot.series for point in each.points})
    xs = _spread(every)
    by_x = [{point.x: point.y for point in each.points} for each in plot.series]
    names = {p.x: p.label for each in plot.series for p in each.points if p.label is not None}
    named = (Column(name=""),) if names else ()
    x_unit = plot.x_unit if plot.x_unit != "text" else "count"
    return Table(
        title=f"{plot.title} ({plot.y_label})",
        columns=(
            *named,
            Column(name=plot.x_label, unit=x_unit),
            *(Column(name=each.name, unit=plot.y_unit) for each in plot.series),
        ),
        rows=tuple(
            (*(names.get(x) for _ in named), x, *(values.get(x) for values in by_x)) for x in xs
        ),
        note=None if len(xs) == len(every) else f"{len(xs)} of {len(every)} points.",
    )


def _spread(values: list[float]) -> list[float]:
    """At most `MOST_ROWS` of the values, evenly spread, with the first and the last."""
    if len(values) <= MOST_ROWS:
        return values
    last = len(values) - 1
    return [values[round(row * last / (MOST_ROWS - 1))] for row in range(MOST_ROWS)]


def _roofline_table(plot: Plot) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (point.label, point.x, point.y, *(height(roof, point.x) for roof in roofs(plot)))
        for each in places(plot)
        for point in each.points
    ]
    return Table(
        title=plot.title,
        columns=(
            Column(name=""),
            Column(name=plot.x_label, unit=plot.x_unit),
            Column(name=plot.y_label, unit=plot.y_unit),
            *(Column(name=f"{roof.name} there", unit=plot.y_unit) for roof in roofs(plot)),
        ),
        rows=tuple(rows),
    )
