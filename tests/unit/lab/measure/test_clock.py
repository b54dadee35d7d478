"""Marks in time."""

from peakward.lab.measure.clock import CpuClock, clock_for


def test_cpu_marks_are_in_order():
    clock = clock_for("cpu")
    assert isinstance(clock, CpuClock)
    clock.reserve(3)
    for i in range(3):
        clock.mark(i)
    clock.wait(2)
    assert 0 < clock.between_s(0, 1) < clock.between_s(0, 2)
    assert clock.look_back == 0
