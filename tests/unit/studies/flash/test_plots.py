"""The plots of `flash`."""

from peakward.studies import flash


def test_a_line_for_each_arm_that_ran(read_flash):
    here, readings = read_flash("small", "cpu")
    forward, backward, both = flash.parts(readings, here).plots
    assert [line.name for line in forward.series] == ["naive", "compiled", "sdpa", "flex"]
    assert [line.name for line in backward.series] == ["naive", "compiled", "sdpa"]
    assert [point.x for point in both.series[0].points] == [128, 1024]
