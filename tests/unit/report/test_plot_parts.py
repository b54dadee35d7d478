import pytest

from peakward.records.study import Plot, Point, Series
from peakward.report.plot_parts import FLOOR, height, marks, measured, ordered, places, roofs

ROOF = Series(name="roof", points=(Point(x=1, y=10), Point(x=10, y=100), Point(x=100, y=100)))
PLACE = Series(name="best", points=(Point(x=5, y=20, label="best"),))


def plot(kind, *series):
    return Plot(
        title="t", kind=kind, x_label="", y_label="", x_unit="count", y_unit="s", series=series
    )


@pytest.mark.parametrize(("x", "y"), [(1, 10), (2, 20), (10, 100), (50, 100), (0.5, 5), (1e3, 100)])
def test_a_roof_is_straight_on_logarithmic_axes(x, y):
    assert height(ROOF, x) == pytest.approx(y)


def test_roofs_have_no_labels_and_places_have():
    drawn = plot("roofline", ROOF, PLACE)
    assert roofs(drawn) == (ROOF,)
    assert places(drawn) == (PLACE,)


def test_the_floor_is_no_bar():
    bars = Series(name="measured", points=(Point(x=1, y=1), Point(x=0, y=2)))
    floor = Series(name=FLOOR, points=())
    drawn = plot("bars", bars, floor)
    assert (measured(drawn), marks(drawn)) == ((bars,), (floor,))
    assert [point.x for point, _ in ordered((bars,))] == [0, 1]
