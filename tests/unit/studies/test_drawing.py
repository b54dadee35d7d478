"""Points by series."""

from peakward.records.measurement import Interval
from peakward.records.study import Point
from peakward.studies.drawing import point, series


def test_series_keep_the_order_their_names_came_in():
    made = series([("b", Point(x=1, y=1)), ("a", Point(x=2, y=2)), ("b", Point(x=3, y=3))])
    assert [(each.name, [p.x for p in each.points]) for each in made] == [("b", [1, 3]), ("a", [2])]


def test_a_point_carries_its_interval():
    made = point(4.0, Interval(estimate=2.0, low=1.0, high=3.0), label="x")
    assert (made.x, made.y, made.low, made.high, made.label) == (4.0, 2.0, 1.0, 3.0, "x")
