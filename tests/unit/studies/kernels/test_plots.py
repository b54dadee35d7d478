"""The bars and the curve."""

import pytest

from peakward.studies import kernels
from peakward.studies.kernels.grid import read
from peakward.studies.kernels.plots import plots


@pytest.fixture
def cells(setting, gathered):
    here = setting()
    return read(gathered(kernels, here), here)


def test_bars_by_category_one_series_a_size(cells):
    inference, training, _ = plots(cells, "kernel")
    assert [each.name for each in inference.series] == ["small", "2.7B"]
    labels = {point.label: point.y for point in training.series[0].points}
    assert labels == pytest.approx({"matmul": 0.475, "elementwise": 0.45, "softmax": 0.075})


def test_the_share_of_matmuls_by_length(cells):
    *_, curve = plots(cells, "kernel")
    assert [each.name for each in curve.series] == [
        "small, inference",
        "small, training step",
        "2.7B, inference",
        "2.7B, training step",
    ]
    assert [point.x for point in curve.series[0].points] == [128, 512, 1024]


def test_nothing_to_draw_without_profiles(cells):
    assert not any(each.series for each in plots((), "kernel"))
