"""The ratio of two medians from their intervals, and what it supports."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.records.measurement import Interval
from peakward.stats.compare import judge_change, median_ratio

PERCENT_3 = 0.03


def interval(estimate: float, low: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high)


def test_a_known_ratio_by_hand():
    before = interval(1.0, math.exp(-0.03), math.exp(0.03))
    after = interval(2.0, 2.0 * math.exp(-0.04), 2.0 * math.exp(0.04))
    ratio = median_ratio(before, after)
    # ln 2 ± √(0.04² + 0.03²) = ln 2 ± 0.05
    assert ratio.estimate == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0 * math.exp(-0.05))
    assert ratio.high == pytest.approx(2.0 * math.exp(0.05))


def test_the_limits_keep_the_skew_of_the_two_intervals():
    exact = interval(1.0, 1.0, 1.0)
    skewed = interval(1.0, 0.99, 1.5)
    assert median_ratio(exact, skewed) == interval(1.0, 0.99, 1.5)
    turned = median_ratio(skewed, exact)
    assert (turned.low, turned.high) == (pytest.approx(1 / 1.5), pytest.approx(1 / 0.99))


sides = st.tuples(
    st.floats(1e-6, 1e3), st.floats(0.0, 1.0, exclude_max=True), st.floats(0.0, 5.0)
).map(lambda t: interval(t[0], t[0] * (1 - t[1]) or 1e-12, t[0] * (1 + t[2])))


@given(sides, sides)
def test_turning_the_comparison_round_inverts_the_ratio(before, after):
    forth, back = median_ratio(before, after), median_ratio(after, before)
    assert forth.estimate == pytest.approx(1 / back.estimate)
    assert forth.low == pytest.approx(1 / back.high)
    assert forth.low <= forth.estimate * (1 + 1e-12)
    assert forth.estimate <= forth.high * (1 + 1e-12)


@given(sides, sides)
def test_the_interval_is_no_narrower_than_either_sides_own(before, after):
    ratio = median_ratio(before, after)
    for side in (before, after):
        assert ratio.high / ratio.low >= side.high / side.low * (1 - 1e-9)


def test_it_covers_the_true_ratio_about_as_often_as_its_level_says():
    draw = random.Random(7)
    hits = 0
    for _ in range(400):
        sides = []
        for scale in (1.0, 1.1):
            times = [scale * math.exp(draw.gauss(0, 0.05)) for _ in range(100)]
            centre = statistics.median(times)
            # Of a median of n lognormal values: sd = 0.05 · √(π / 2n).
            width = math.exp(1.96 * 0.05 * math.sqrt(math.pi / 200))
            sides.append(interval(centre, centre / width, centre * width))
        ratio = median_ratio(*sides)
        hits += ratio.low <= 1.1 <= ratio.high
    # 400 draws at 95%: four standard deviations are 17.
    assert 363 <= hits <= 397


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.031, 1.2, "slower"),
        (1.03, 1.2, "inconclusive"),
        (0.8, 0.97, "faster"),
        (0.8, 0.975, "inconclusive"),
        (0.98, 1.02, "same"),
        (0.99, 1.04, "inconclusive"),
        (0.5, 2.0, "inconclusive"),
    ],
)
def test_verdicts(low, high, verdict):
    assert judge_change(interval(1.0, low, high), threshold=PERCENT_3) == verdict


def test_intervals_that_cannot_be_put_together_are_refused():
    with pytest.raises(ValueError, match="one level"):
        median_ratio(interval(1, 1, 1), Interval(estimate=1, low=1, high=1, level=0.9))
    with pytest.raises(ValueError, match="positive"):
        median_ratio(interval(1, 0, 1), interval(1, 1, 1))
