"""The roles of a plot's series: bars and their limits, roofs and roofline points."""

import bisect
import math

from peakward.records.study import Plot, Point, Series

FLOOR = "floor"
"""In `bars`, the series of this name is a limit, marked on the bars with the same labels."""


def measured(plot: Plot) -> tuple[Series, ...]:
    """The series of a `bars` plot that are bars."""
    return tuple(each for each in plot.series if each.name != FLOOR)


def marks(plot: Plot) -> tuple[Series, ...]:
    """The series of a `bars` plot that mark limits on bars with the same labels."""
    return tuple(each for each in plot.series if each.name == FLOOR)


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
