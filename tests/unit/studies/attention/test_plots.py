"""The plots of `attention`."""

from peakward.studies import attention
from peakward.studies.attention.grid import read
from peakward.studies.attention.plots import plots


def test_time_and_memory_by_length(setting, gathered):
    here = setting("small", "cpu")
    forward, backward, held = plots(read(gathered(attention, here), here))
    assert [line.name for line in forward.series] == ["naive", "compiled", "sdpa", "flex"]
    assert [line.name for line in backward.series] == ["naive", "compiled", "sdpa"]
    assert [point.x for point in held.series[0].points] == [128, 512, 1024]
    assert forward.series[0].points[0].low is not None
