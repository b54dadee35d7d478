"""The plots of `memory`."""

import msgspec
import pytest

from peakward.studies import memory
from peakward.studies.memory.grid import longest, read
from peakward.studies.memory.plots import peaks, timelines


@pytest.fixture
def cells(setting, gathered):
    here = setting()
    return read(gathered(memory, here), here)


def test_a_timeline_has_a_line_for_each_category_and_their_sum(cells):
    last = longest(cells)
    (plot, *others) = timelines(last)
    assert len(others) == 3
    whole, *parts = [each for each in plot.series if not each.name.startswith("kernels of")]
    assert [each.name for each in (whole, *parts)] == [
        "all",
        "parameters",
        "gradients",
        "activations",
        "temporaries",
    ]
    for i, point in enumerate(whole.points):
        assert point.y == sum(each.points[i].y for each in parts)
    assert max(point.y for point in whole.points) == last[0].peak.allocated_bytes


def test_it_is_drawn_against_time_where_that_is_known(cells):
    last = longest(cells)
    (plot, *_) = timelines(last)
    assert (plot.x_unit, plot.x_label) == ("s", "time since the step began")
    assert [point.x for point in plot.series[0].points] == list(last[0].memory.clock.times_s)
    kernels = {each.name: each.points for each in plot.series[-3:]}
    assert list(kernels) == ["kernels of forward", "kernels of backward", "kernels of optimizer"]
    assert [(each.x, each.y) for each in kernels["kernels of backward"]] == [(2e-3, 0), (4e-3, 0)]
    bare = msgspec.structs.replace(
        last[0], memory=msgspec.structs.replace(last[0].memory, clock=None)
    )
    (plot,) = timelines([bare])
    assert plot.x_unit == "count"
    assert [point.x for point in plot.series[0].points] == [0, 1, 2]
    assert len(plot.series) == 5


def test_peaks_have_a_line_for_each_size_precision_and_pass(cells):
    plot = peaks(cells)
    assert len(plot.series) == 8
    assert all([point.x for point in each.points] == [128, 512, 1024] for each in plot.series)
