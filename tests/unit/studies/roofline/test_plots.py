"""The rooflines."""

import msgspec
import pytest

from peakward.report.charts.draw import draw
from peakward.report.plot_parts import height, places, roofs
from peakward.studies.roofline.plots import plots
from peakward.studies.roofline.sums import LEAST_SHARE


def test_a_plot_each_at_the_largest_batch(cells):
    found = plots(cells)
    assert len(found) == 6
    assert found[0].title == "Roofline: micro, fp32, eager, batch 16"
    for plot in found:
        assert plot.title in draw(plot, 1040)


def test_marks_lie_under_the_roof_as_far_as_they_were_made(cells):
    plot = plots(cells)[0]
    (roof,) = roofs(plot)
    for mark in places(plot):
        (point,) = mark.points
        expected = 4 if mark.name in ("softmax", "optimiser") else 2
        if mark.name in ("softmax", "optimiser", "up"):
            assert height(roof, point.x) / point.y == pytest.approx(expected, rel=1e-2)
    assert {"softmax", "optimiser", "up"} <= {mark.name for mark in places(plot)}


def test_what_computes_nothing_or_takes_next_to_nothing_is_not_drawn(cells):
    for plot, cell in zip(plots(cells), cells[2::3], strict=True):
        names = {mark.name for mark in places(plot)}
        whole_s = sum(each.measured_s for each in cell.places)
        assert "embedding" not in names
        for each in cell.places:
            if each.measured_s < LEAST_SHARE * whole_s:
                assert each.kind not in names


def test_nothing_is_drawn_without_a_roof(cells):
    unknown = [
        msgspec.structs.replace(each, on=each.on._replace(matmul_flops_per_s=None))
        for each in cells
    ]
    assert plots(unknown) == ()
    assert plots(()) == ()
