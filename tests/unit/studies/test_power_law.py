"""Exponents of power laws."""

import pytest

from peakward.studies.power_law import exponent


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_the_exponent_of_an_exact_law(power):
    xs = [128, 256, 512, 1024]
    assert exponent(xs, [3.0 * x**power for x in xs]) == pytest.approx(power)


def test_two_points_fit_anything_and_say_nothing():
    assert exponent([128, 128, 256], [1.0, 1.0, 2.0]) is None
