"""Seconds by bytes moved, through points by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.prediction.time.traffic_curve import FULL, TrafficCurve
from peakward.records.calibration import TrafficRate


def rate(size_bytes, bytes_per_s, operation="add"):
    return TrafficRate(operation=operation, size_bytes=size_bytes, bytes_per_s=bytes_per_s)


CURVE = TrafficCurve.measured([rate(1000, 1500.0), rate(100, 300.0), rate(100, 9.0, "copy")])
"""Additions that move 300 bytes in 1 s and 3000 in 2 s; the copy is another kernel's."""


@pytest.mark.parametrize(
    ("moved_bytes", "seconds"),
    [(0, 1.0), (300, 1.0), (1650, 1.5), (3000, 2.0), (6000, 4.0)],
)
def test_a_launch_then_straight_lines_then_the_bandwidth(moved_bytes, seconds):
    assert CURVE.time_s(moved_bytes) == pytest.approx(seconds)


def test_a_launch_is_the_smallest_call():
    assert CURVE.launch_s == 1.0


def test_the_datasheets_is_a_launch_and_the_bandwidth():
    stated = TrafficCurve.stated(1e9, 2e-6)
    assert stated.launch_s == stated.time_s(0) == 2e-6
    assert stated.time_s(5e8) == pytest.approx(0.5 + 2e-6)
    assert stated.time_s(3e9) == pytest.approx(3.0, rel=1e-5)


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_more_bytes_never_take_less(a, b):
    stated = TrafficCurve.stated(4e12, 2e-6)
    assert stated.time_s(min(a, b)) <= stated.time_s(max(a, b))


def test_a_factor_is_on_what_is_moved_and_not_on_a_launch():
    curve = TrafficCurve((0, 10**12), (2e-6, 1 + 2e-6))
    assert curve.slowed_s(1.65, 0) == curve.launch_s
    full_bytes = (FULL - 1) * 2e-6 * 1e12
    for moved in (full_bytes, 10 * full_bytes):
        assert curve.slowed_s(1.65, moved) == pytest.approx(1.65 * curve.time_s(moved))
    grown = [curve.slowed_s(1.65, share * full_bytes) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert grown == sorted(grown)
