"""The plots of `memory`."""

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
    assert [each.name for each in plot.series] == [
        "all",
        "parameters",
        "gradients",
        "activations",
        "temporaries",
    ]
    whole, *parts = plot.series
    for i, point in enumerate(whole.points):
        assert point.y == sum(each.points[i].y for each in parts)
    assert max(point.y for point in whole.points) == last[0].peak.allocated_bytes


def test_peaks_have_a_line_for_each_size_precision_and_pass(cells):
    plot = peaks(cells)
    assert len(plot.series) == 8
    assert all([point.x for point in each.points] == [128, 512, 1024] for each in plot.series)
