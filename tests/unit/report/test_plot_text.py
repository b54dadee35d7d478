import pytest

from peakward.records.study import Plot, Point, Series
from peakward.report import plot_text
from peakward.report.plot_parts import FLOOR


def plot(kind, *series, **changes):
    axes = {"x_label": "x", "y_label": "y", "x_unit": "count", "y_unit": "s"}
    return Plot(title="t", kind=kind, series=series, **(axes | changes))


def test_bars_are_as_long_as_their_values():
    points = (
        Point(x=0, y=1.0, label="a"),
        Point(x=1, y=0.5, low=0.4, high=0.6, label="bb"),
    )
    a, b = plot_text.bars(plot("bars", Series(name="measured", points=points)), 60)
    assert a.count("█") // 2 == b.count("█")
    assert b.endswith("500 ms (400–600 ms)")
    assert max(len(a), len(b)) <= 60


def test_a_floor_is_marked_on_its_own_bar():
    measured = Series(
        name="measured", points=(Point(x=0, y=1.0, label="a"), Point(x=1, y=1.0, label="b"))
    )
    floor = Series(name=FLOOR, points=(Point(x=0, y=0.5, label="a"),))
    a, b, legend = plot_text.bars(plot("bars", measured, floor), 80)
    assert plot_text.FLOOR_MARK in a
    assert plot_text.FLOOR_MARK not in b
    assert legend.strip() == f"{plot_text.FLOOR_MARK} floor"


def test_several_series_name_their_bars():
    series = [Series(name=name, points=(Point(x=0, y=1.0, label="a"),)) for name in ("p", "q")]
    assert [line.split("  ")[0] for line in plot_text.bars(plot("bars", *series), 60)] == [
        "a, p",
        "a, q",
    ]


def test_lines_become_a_column_each():
    p = Series(name="p", points=(Point(x=1, y=0.1), Point(x=2, y=0.2)))
    q = Series(name="q", points=(Point(x=2, y=0.3),))
    table = plot_text.table(plot("lines", p, q))
    assert table.rows == ((1, 0.1, None), (2, 0.2, 0.3))
    assert [column.name for column in table.columns] == ["x", "p", "q"]


def test_points_with_names_keep_them():
    p = Series(name="p", points=(Point(x=124e6, y=0.1, label="small"),))
    assert plot_text.table(plot("lines", p)).rows == (("small", 124e6, 0.1),)


def test_a_long_line_is_thinned_and_says_so():
    points = tuple(Point(x=x, y=1.0) for x in range(100))
    table = plot_text.table(plot("lines", Series(name="p", points=points)))
    assert [row[0] for row in table.rows][:: plot_text.MOST_ROWS - 1] == [0, 99]
    assert table.note == "16 of 100 points."


def test_a_roofline_gives_the_roof_over_each_place():
    roof = Series(
        name="roof", points=(Point(x=1, y=10.0), Point(x=10, y=100.0), Point(x=100, y=100.0))
    )
    places = Series(name="best", points=(Point(x=5, y=20.0, label="best"),))
    (row,) = plot_text.table(plot("roofline", roof, places)).rows
    assert row == ("best", 5, 20.0, pytest.approx(50.0))
