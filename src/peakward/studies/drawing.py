"""Points, collected by the name of their series."""

from collections.abc import Iterable

from peakward.records.measurement import Interval
from peakward.records.study import Point, Series


def series(named: Iterable[tuple[str, Point]]) -> tuple[Series, ...]:
    """One series a name, in the order the names first came."""
    points: dict[str, list[Point]] = {}
    for name, point in named:
        points.setdefault(name, []).append(point)
    return tuple(Series(name=name, points=tuple(each)) for name, each in points.items())


def point(x: float, interval: Interval, label: str | None = None) -> Point:
    """A mark with its interval."""
    return Point(x=x, y=interval.estimate, low=interval.low, high=interval.high, label=label)
