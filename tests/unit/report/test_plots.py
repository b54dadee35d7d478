"""Plots: the roles of their series, and plots as text, bars of block characters and tables of points."""

import pytest

from peakward.records.study import Plot, Point, Series
from peakward.report import plots
from peakward.report.plots import FLOOR, height, marks, measured, ordered, places, roofs

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


def small_plot(kind, *series, **changes):
    axes = {"x_label": "x", "y_label": "y", "x_unit": "count", "y_unit": "s"}
    return Plot(title="t", kind=kind, series=series, **(axes | changes))


def test_bars_are_as_long_as_their_values():
    points = (
        Point(x=0, y=1.0, label="a"),
        Point(x=1, y=0.5, low=0.4, high=0.6, label="bb"),
    )
    a, b = plots.bars(small_plot("bars", Series(name="measured", points=points)), 60)
    assert a.count("█") // 2 == b.count("█")
    assert b.endswith("500 ms (400–600 ms)")
    assert max(len(a), len(b)) <= 60


def test_a_floor_is_marked_on_its_own_bar():
    measured = Series(
        name="measured", points=(Point(x=0, y=1.0, label="a"), Point(x=1, y=1.0, label="b"))
    )
    floor = Series(name=FLOOR, points=(Point(x=0, y=0.5, label="a"),))
    a, b, legend = plots.bars(small_plot("bars", measured, floor), 80)
    assert plots.FLOOR_MARK in a
    assert plots.FLOOR_MARK not in b
    assert legend.strip() == f"{plots.FLOOR_MARK} floor"


def test_several_series_name_their_bars():
    series = [Series(name=name, points=(Point(x=0, y=1.0, label="a"),)) for name in ("p", "q")]
    assert [line.split("  ")[0] for line in plots.bars(small_plot("bars", *series), 60)] == [
        "a, p",
        "a, q",
    ]


def test_lines_become_a_column_each():
    p = Series(name="p", points=(Point(x=1, y=0.1), Point(x=2, y=0.2)))
    q = Series(name="q", points=(Point(x=2, y=0.3),))
    table = plots.table(small_plot("lines", p, q))
    assert table.rows == ((1, 0.1, None), (2, 0.2, 0.3))
    assert [column.name for column in table.columns] == ["x", "p", "q"]


def test_points_with_names_keep_them():
    p = Series(name="p", points=(Point(x=124e6, y=0.1, label="small"),))
    assert plots.table(small_plot("lines", p)).rows == (("small", 124e6, 0.1),)


def test_a_long_line_is_thinned_and_says_so():
    points = tuple(Point(x=x, y=1.0) for x in range(100))
    table = plots.table(small_plot("lines", Series(name="p", points=points)))
    assert [row[0] for row in table.rows][:: plots.MOST_ROWS - 1] == [0, 99]
    assert table.note == "16 of 100 points."


def test_a_roofline_gives_the_roof_over_each_place():
    roof = Series(
        name="roof", points=(Point(x=1, y=10.0), Point(x=10, y=100.0), Point(x=100, y=100.0))
    )
    places = Series(name="best", points=(Point(x=5, y=20.0, label="best"),))
    (row,) = plots.table(small_plot("roofline", roof, places)).rows
    assert row == ("best", 5, 20.0, pytest.approx(50.0))


def heat(*rows, **changes):
    series = tuple(
        Series(
            name=f"row {n}",
            points=tuple(Point(x=x, y=y) for x, y in enumerate(row) if y is not None),
        )
        for n, row in enumerate(rows)
    )
    return small_plot("heat", *series, **changes)


def test_a_cell_is_as_dark_as_its_share_of_the_largest():
    drawn = heat((0.0, 0.1, 0.3), (0.6, None, 1.0), y_unit="share")
    assert plots.heat(drawn, 80) == (
        "row 0    ░░▒▒",
        "row 1  ▓▓××██",
        "x 0 to 2; y 10.0% ░ to █ 100%",
        "× no value",
    )
    assert plots.drawn(drawn, 80) == plots.heat(drawn, 80)


def test_a_logarithmic_shade_spans_the_values():
    drawn = heat((1e-7, 1e-5, 1e-3, 1e-1), log_y=True)
    assert [plots.shade(drawn, y, 4) for y in (0.0, 1e-9, 1e-7, 1e-4, 1e-1)] == [0, 1, 1, 3, 4]
    assert plots.shade(heat((0.5, 0.5), log_y=True), 0.5, 4) == 4
    assert plots.shade(heat((0.0, 0.0)), 0.0, 4) == 0


def test_a_row_s_name_is_cut_where_cells_need_the_room():
    points = tuple(Point(x=x, y=1.0) for x in range(16))
    row, _ = plots.heat(
        small_plot("heat", Series(name="layer 12, without and with", points=points)), 30
    )
    assert "…" in row
    assert len(row) <= 30
