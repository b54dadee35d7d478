"""The bootstrap interval of the median: against enumeration, and by its coverage."""

import itertools
import math
import random
from collections import defaultdict
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.stats.bootstrap import median_interval
from peakward.stats.distributions import binomial_at_least

times = st.floats(1e-6, 1e3)


def enumerated_limits(values: list[float], level: float) -> tuple[float, float]:
    """Percentiles of the median over every one of the n^n resamples."""
    chances: dict[float, int] = defaultdict(int)
    for sample in itertools.product(values, repeat=len(values)):
        chances[median(sample)] += 1
    total = len(values) ** len(values)

    def first_to_hold(ordered: list[float]) -> float:
        gathered = 0
        for value in ordered:
            gathered += chances[value]
            if gathered / total >= (1 - level) / 2:
                return value
        raise AssertionError

    return first_to_hold(sorted(chances)), first_to_hold(sorted(chances, reverse=True))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_it_is_what_all_resamples_give(n: int, level: float) -> None:
    draw = random.Random(n)
    values = [draw.lognormvariate(0, 1) for _ in range(n)]
    interval = median_interval(values, level=level)
    assert (interval.low, interval.high) == pytest.approx(enumerated_limits(values, level))
    assert (interval.estimate, interval.level) == (median(values), level)


def sampled_limits(
    values: list[float], n_resamples: int, draw: random.Random
) -> tuple[float, float]:
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(n_resamples))
    return medians[int(0.025 * n_resamples)], medians[int(0.975 * n_resamples)]


@pytest.mark.parametrize("n", [30, 31])
def test_sampling_tends_to_it(n: int) -> None:
    draw = random.Random(7)
    values = sorted(draw.lognormvariate(0, 0.1) for _ in range(n))
    interval = median_interval(values)
    low, high = sampled_limits(values, 20_000, draw)
    # Monte Carlo error moves a limit by less than the distance between neighbouring values.
    spacing = max(after - before for before, after in itertools.pairwise(values[8:-8]))
    assert interval.low == pytest.approx(low, abs=spacing)
    assert interval.high == pytest.approx(high, abs=spacing)


def true_coverage(n: int) -> float:
    """Of the interval at odd n, for any continuous distribution.

    Its ends are the l-th and u-th values, which enclose the true median where at least l and fewer
    than u of n fair coins fall below it.
    """
    ranks = median_interval(list(range(1, n + 1)))
    below_low = 1 - binomial_at_least(int(ranks.low), n, 0.5)
    return 1 - below_low - binomial_at_least(int(ranks.high), n, 0.5)


@pytest.mark.parametrize("n", [9, 15, 51])
def test_it_covers_the_true_median_as_often_as_it_should(n: int) -> None:
    draw, n_draws, true_median = random.Random(11), 1000, 1.0
    hits = 0
    for _ in range(n_draws):
        interval = median_interval([draw.lognormvariate(0, 0.5) for _ in range(n)])
        hits += interval.low <= true_median <= interval.high
    coverage = true_coverage(n)
    assert 0.9 < coverage < 0.98
    band = 3.5 * math.sqrt(n_draws * coverage * (1 - coverage))
    assert abs(hits - n_draws * coverage) < band


@given(st.lists(times, min_size=1, max_size=40))
def test_it_encloses_the_median_within_the_values(values: list[float]) -> None:
    interval = median_interval(values)
    assert min(values) <= interval.low <= interval.estimate <= interval.high <= max(values)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30))
def test_it_mirrors_and_scales_with_the_values(values: list[int]) -> None:
    interval = median_interval(values)
    mirrored = median_interval([-2 * value for value in values])
    assert (mirrored.low, mirrored.high) == (-2 * interval.high, -2 * interval.low)


@given(st.lists(times, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], draw: random.Random) -> None:
    shuffled = list(values)
    draw.shuffle(shuffled)
    assert median_interval(shuffled) == median_interval(values)


@pytest.mark.parametrize("n", [1, 2, 7, 200, 20_000])
def test_constants_have_no_width(n: int) -> None:
    interval = median_interval([0.25] * n)
    assert (interval.low, interval.estimate, interval.high) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize("n", [100_000, 100_001])
def test_it_holds_at_large_n(n: int) -> None:
    """The normal limit of the median of a uniform: rank n/2 ± 1.96·sqrt(n)/2."""
    interval = median_interval(range(n))
    half_width = 1.959964 * math.sqrt(n) / 2
    assert interval.estimate - interval.low == pytest.approx(half_width, rel=0.01)
    assert interval.high - interval.estimate == pytest.approx(half_width, rel=0.01)


def test_a_higher_level_is_wider() -> None:
    values = [random.Random(3).random() for _ in range(50)]
    widths = [
        interval.high - interval.low
        for interval in (median_interval(values, level=level) for level in (0.5, 0.9, 0.99))
    ]
    assert widths == sorted(widths)


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError):
        median_interval([])
