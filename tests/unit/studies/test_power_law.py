"""Exponents of power laws."""

import pytest

from peakward.records.measurement import Interval
from peakward.studies.power_law import exponent, exponent_interval


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_the_exponent_of_an_exact_law(power):
    xs = [128, 256, 512, 1024]
    assert exponent(xs, [3.0 * x**power for x in xs]) == pytest.approx(power)


def test_two_points_fit_anything_and_say_nothing():
    assert exponent([128, 128, 256], [1.0, 1.0, 2.0]) is None


def test_the_interval_of_an_exponent_is_that_of_the_ends_by_their_leverage():
    ys = [Interval(estimate=y, low=y / 2, high=y * 4) for y in (1.0, 4.0, 16.0)]
    found = exponent_interval([1, 2, 4], ys)
    assert found.estimate == pytest.approx(2)
    # Each end of the line counts half a power: two doublings of one, one halving of the other.
    assert (found.low, found.high) == pytest.approx((2 - 5**0.5 / 2, 2 + 5**0.5 / 2))
    exact = [Interval(estimate=y, low=y, high=y) for y in (1.0, 4.0, 16.0)]
    assert exponent_interval([1, 2, 4], exact) == Interval(
        estimate=pytest.approx(2), low=pytest.approx(2), high=pytest.approx(2)
    )
    assert exponent_interval([1, 2], exact[:2]) is None
