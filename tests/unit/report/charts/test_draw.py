import itertools
from xml.etree import ElementTree as ET

import msgspec
import pytest

from peakward.records.study import Plot, Point, Series
from peakward.report.charts import draw
from peakward.report.charts.canvas import LINE, N_COLOURS, width_of
from peakward.report.run import plots
from peakward.report.run.investigation import read

WIDTHS = [1040, 350]
HEAT = Plot(
    title="shades",
    kind="heat",
    x_label="step",
    y_label="off by",
    x_unit="count",
    y_unit="count",
    log_y=True,
    series=tuple(
        Series(
            name=f"layer {row}, without and with",
            points=tuple(Point(x=x, y=10.0 ** (x - 9) if x else 0.0) for x in range(8)),
        )
        for row in range(3)
    ),
)


@pytest.fixture
def every_kind(run_study, bench_study):
    found = read(run_study)
    return [*bench_study.plots, plots.step_times(found), plots.roofline(found), HEAT]


def tags(root, tag, style=""):
    return [each for each in root.iter(tag) if style in each.get("class", "").split() or not style]


def words(root):
    return [each.text for each in root.iter("text")]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_drawing_stays_inside_its_frame(every_kind, width):
    for plot in every_kind:
        root = ET.fromstring(draw(plot, width))
        height = float(root.get("height"))
        for each in root.iter("text"):
            assert 0 <= float(each.get("x")) <= width
            assert 0 <= float(each.get("y")) <= height
        for each in root.iter("line"):
            assert all(-0.1 <= float(each.get(x)) <= width + 0.1 for x in ("x1", "x2"))
            assert all(-0.1 <= float(each.get(y)) <= height + 0.1 for y in ("y1", "y2"))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_cell_without_a_value_is_crossed_and_not_drawn_as_0(width):
    whole, *others = HEAT.series
    cut = msgspec.structs.replace(whole, points=whole.points[:5])
    drawn = msgspec.structs.replace(HEAT, series=(cut, *others))
    root, plain = (ET.fromstring(draw(each, width)) for each in (drawn, HEAT))
    (crosses,) = tags(root, "path", "missing")
    assert crosses.get("d").count("M") == 3
    assert "no value in 3 of 8 cells" in root.find("desc").text
    assert any("no value" in each for each in words(root))
    n_cells, n_all = (
        sum(each.get("d").count("M") for each in tags(found, "path", "cell"))
        for found in (root, plain)
    )
    assert n_cells == n_all - 3
    assert not tags(plain, "path", "missing")
    assert not any("no value" in each for each in words(plain))
    assert all(float(each.get("y")) <= float(root.get("height")) for each in root.iter("text"))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_drawing_names_and_describes_itself(every_kind, width):
    for plot in every_kind:
        root = ET.fromstring(draw(plot, width))
        assert root.get("role") == "img"
        assert root.find("title").text == plot.title
        assert plot.y_label in root.find("desc").text


def test_names_are_escaped_in_text_and_description(bench_study):
    plot = bench_study.plots[0]
    series = tuple(msgspec.structs.replace(each, name="<script>&") for each in plot.series)
    text = draw(msgspec.structs.replace(plot, series=series, title='"><b>'), 1040)
    assert "<script>" not in text
    assert "<b>" not in text
    assert "<script>&" in words(ET.fromstring(text))


def test_no_style_attribute_that_the_page_would_forbid(every_kind):
    for plot in every_kind:
        assert 'style="' not in draw(plot, 1040)


def test_lines_are_named_at_their_ends_or_in_a_legend(bench_study):
    plot = bench_study.plots[0]
    wide, narrow = (ET.fromstring(draw(plot, width)) for width in WIDTHS)
    assert [each.text for each in tags(wide, "text", "name")] == ["2.7B", "small"]
    assert tags(narrow, "text", "name") == []
    assert {"small", "2.7B"} <= set(words(narrow))
    assert len(tags(wide, "path", "line")) == 2
    assert len(tags(wide, "line", "whisker")) == 5


def test_lines_that_end_together_are_named_apart_and_above_the_axis(bench_study):
    points, high = ((Point(x=128, y=y), Point(x=512, y=y)) for y in (1e-3, 1.0))
    low = tuple(Series(name=f"line {n}", points=points) for n in range(8))
    series = (*low, Series(name="high", points=high))
    plot = msgspec.structs.replace(bench_study.plots[0], series=series)
    root = ET.fromstring(draw(plot, 1040))
    names = {each.text: float(each.get("y")) for each in tags(root, "text", "name")}
    assert len(names) == 9
    places = sorted(names.values())
    assert all(lower - upper >= LINE for upper, lower in itertools.pairwise(places))
    assert places[-1] <= max(float(each.get("y1")) for each in tags(root, "line", "base")) + 4


def test_a_colour_is_dashed_the_second_time(bench_study):
    points = bench_study.plots[0].series[0].points
    series = tuple(Series(name=f"line {n}", points=points) for n in range(N_COLOURS + 1))
    root = ET.fromstring(draw(msgspec.structs.replace(bench_study.plots[0], series=series), 1040))
    assert len(tags(root, "path", "c0")) == 2
    assert len(tags(root, "path", "again")) == len(tags(root, "line", "again")) == 1


def test_lines_too_many_to_name_at_their_ends_have_a_legend(bench_study):
    points = bench_study.plots[0].series[0].points
    series = tuple(Series(name=f"line {n}", points=points) for n in range(30))
    root = ET.fromstring(draw(msgspec.structs.replace(bench_study.plots[0], series=series), 1040))
    assert tags(root, "text", "name") == []
    assert {"line 0", "line 29"} <= set(words(root))


def test_lines_tick_the_values_that_were_measured(bench_study):
    assert {"128", "256", "512"} <= set(words(ET.fromstring(draw(bench_study.plots[0], 1040))))


def test_names_of_points_replace_their_values_on_the_axis():
    points = (Point(x=124e6, y=0.1, label="small"), Point(x=3.4e9, y=0.2, label="2.7B"))
    plot = Plot(
        title="t",
        kind="lines",
        x_label="parameters",
        y_label="y",
        x_unit="count",
        y_unit="s",
        log_x=True,
        series=(Series(name="a", points=points),),
    )
    assert {"small", "2.7B"} <= set(words(ET.fromstring(draw(plot, 350))))


def test_names_of_points_that_the_axis_has_no_room_for_stand_by_their_marks():
    points = [Point(x=1 + i / 100, y=1.0, label=name) for i, name in enumerate(["none", "sqrt"])]
    plot = msgspec.structs.replace(
        lines_of(1.0), series=(Series(name="a", points=(*points, Point(x=9, y=1.0, label="all"))),)
    )
    named = tags(ET.fromstring(draw(plot, 1040)), "text", "point")
    assert [each.text for each in named] == ["none", "sqrt", "all"]
    first, second, _ = [float(each.get("y")) for each in named]
    assert abs(first - second) >= LINE, "they would touch"
    twice = msgspec.structs.replace(plot, series=plot.series * 2)
    assert tags(ET.fromstring(draw(twice, 1040)), "text", "point") == []


def test_a_long_line_has_no_marks():
    points = tuple(Point(x=x, y=1.0 + x) for x in range(200))
    plot = Plot(
        title="t",
        kind="lines",
        x_label="step",
        y_label="time",
        x_unit="count",
        y_unit="s",
        series=(Series(name="a", points=points),),
    )
    root = ET.fromstring(draw(plot, 1040))
    assert len(tags(root, "path", "line")) == 1
    assert tags(root, "circle") == []


def lines_of(*ends, y_unit="s"):
    """A line for each value at its end."""
    return Plot(
        title="t",
        kind="lines",
        x_label="step",
        y_label="time",
        x_unit="count",
        y_unit=y_unit,
        series=tuple(
            Series(name=f"line {i}", points=(Point(x=1, y=1.0), Point(x=2, y=end)))
            for i, end in enumerate(ends)
        ),
    )


def test_the_room_for_ticks_in_per_cent():
    """In DejaVu Sans at 12 pixels a digit is 7.6 wide, a per cent sign 11.4."""
    root = ET.fromstring(draw(lines_of(1.0, 0.5, y_unit="share"), 1040))
    ticks = [each for each in tags(root, "text", "tick") if each.text == "100%"]
    assert [float(each.get("x")) >= 3 * 7.6 + 11.4 for each in ticks] == [True]


def test_bars_have_lengths_in_proportion_and_intervals(run_study):
    plot = plots.step_times(read(run_study))
    root = ET.fromstring(draw(plot, 1040))
    bars = [float(each.get("width")) for each in tags(root, "rect", "bar")][
        1:
    ]  # after the legend's
    times = [point.y for point in plot.series[0].points]
    assert [bar / bars[0] for bar in bars] == pytest.approx([t / times[0] for t in times], rel=0.01)
    assert len(tags(root, "line", "interval")) == 3 * len(times)
    assert len(tags(root, "rect", "limit")) == 1 + 2


def test_a_bar_of_each_series_in_a_group(bench_study):
    root = ET.fromstring(draw(bench_study.plots[1], 1040))
    assert len(tags(root, "rect", "c0")) == 1 + 3
    assert len(tags(root, "rect", "c1")) == 1 + 2
    assert words(root).count("seq 128") == 1


def test_a_long_legend_of_bars_takes_several_lines(bench_study):
    plot = bench_study.plots[1]
    points = plot.series[0].points
    series = tuple(Series(name=f"a size, number {n}", points=points) for n in range(5))
    root = ET.fromstring(draw(msgspec.structs.replace(plot, series=series), 350))
    entries = [each for each in root.iter("text") if (each.text or "").startswith("a size")]
    ends = [float(each.get("x")) + width_of(each.text) for each in entries]
    assert len(ends) == 5
    assert max(ends) <= 350
    first_bar = min(float(each.get("y")) for each in tags(root, "rect", "c0")[1:])
    assert max(float(each.get("y")) for each in entries) < first_bar


def test_the_roofline_draws_roofs_and_places(run_study):
    root = ET.fromstring(draw(plots.roofline(read(run_study)), 1040))
    assert len(tags(root, "path", "roof")) == 2
    assert {
        "baseline, 41.5 TFLOP/s",
        "best, 428 TFLOP/s",
        "fp32 roof, 50.9 TFLOP/s",
        "bf16 roof, 785 TFLOP/s",
        "4,260 GB/s",
    } <= set(words(root))


def test_a_place_is_not_named_over_the_name_of_a_roof_nor_outside(run_study):
    plot = plots.roofline(read(run_study))
    *roofs, _, _ = plot.series
    x, y = 300.0, roofs[0].points[-1].y
    near = Series(name="near", points=(Point(x=x, y=y, label="a place of a long name, near"),))
    for width in WIDTHS:
        root = ET.fromstring(draw(msgspec.structs.replace(plot, series=(*roofs, near)), width))
        names = {each.text: each for each in tags(root, "text", "name")}
        (label,) = [each for name, each in names.items() if name.startswith("a place")]
        (roof,) = [each for name, each in names.items() if name.startswith(roofs[0].name)]
        assert abs(float(label.get("y")) - float(roof.get("y"))) >= LINE
        begins = float(label.get("x"))
        if label.get("text-anchor") == "end":
            begins -= width_of(label.text)
        assert begins >= 0


def test_many_places_on_a_phone_have_a_legend(run_study):
    plot = plots.roofline(read(run_study))
    *roofs, _, _ = plot.series
    many = tuple(
        Series(name=name, points=(Point(x=300, y=1e12, label=name),))
        for name in ("a", "b", "c", "d")
    )
    crowded = msgspec.structs.replace(plot, series=(*roofs, *many))
    narrow, wide = (ET.fromstring(draw(crowded, width)) for width in (350, 1040))
    labels = {f"{each.name}, 1.00 TFLOP/s" for each in many}
    assert labels <= set(words(narrow))
    assert not labels & {each.text for each in tags(narrow, "text", "name")}
    assert labels <= {each.text for each in tags(wide, "text", "name")}


def test_a_place_at_the_bottom_is_named_above_the_axis(run_study):
    plot = plots.roofline(read(run_study))
    *roofs, _, _ = plot.series
    low = Series(name="slow", points=(Point(x=300, y=1e12, label="slow"),))
    root = ET.fromstring(draw(msgspec.structs.replace(plot, series=(*roofs, low)), 1040))
    (label,) = [each for each in tags(root, "text", "name") if each.text.startswith("slow")]
    axis = max(float(each.get("y1")) for each in tags(root, "line", "base"))
    assert float(label.get("y")) < axis - 5


@pytest.mark.parametrize("width", WIDTHS)
def test_cells_of_one_shade_are_one_path(width):
    root = ET.fromstring(draw(HEAT, width))
    cells = [each.get("d").count("M") for each in tags(root, "path", "cell")]
    # Three rows of a cell without a value, and of one a shade in the rest; then the legend.
    assert sum(cells) == 3 * 8 + 8
    assert len(cells) <= 1 + 8 + 8
    shades = [float(each.get("fill-opacity")) for each in tags(root, "path", "cell")]
    assert min(shades) < 0.1
    assert max(shades) == 1.0
