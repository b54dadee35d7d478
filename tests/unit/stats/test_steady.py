"""Planted warm-ups are found where they end."""

import itertools
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.stats.steady import (
    MIN_STEADY,
    _rises_less_falls,
    _variance_of_score,
    steady_start,
    trend,
)

SEEDS = range(20)


def steady(seed: int, n: int, cv: float = 0.01) -> list[float]:
    draw = random.Random(seed)
    return [0.01 * draw.lognormvariate(0, cv) for _ in range(n)]


@pytest.mark.parametrize("n", [10, 30, 100])
def test_a_steady_series_is_steady_from_the_start(n: int) -> None:
    """Or from the second or third value, where the first happens to be the slowest."""
    starts = [steady_start(steady(seed, n)) for seed in SEEDS]
    assert set(starts) <= {0, 1, 2}
    assert starts.count(0) >= 15


def test_noise_is_not_mistaken_for_warm_up() -> None:
    """At a coefficient of variation of 30% the trend test raises its one alarm in ten, no more."""
    starts = [steady_start(steady(seed, 30, cv=0.3)) for seed in range(200)]
    assert sum(start is None for start in starts) <= 30
    assert sum(start is not None and start <= 5 for start in starts) >= 165


@pytest.mark.parametrize("cv", [0.0, 0.01, 0.1])
def test_a_first_value_a_thousand_times_the_rest_is_cut(cv: float) -> None:
    series = [10.0, *steady(0, 12, cv)]
    assert steady_start(series) == 1
    assert steady_start(series[:MIN_STEADY]) is None
    assert steady_start(series[: MIN_STEADY + 1]) == 1


@pytest.mark.parametrize("warmup", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("factor", [1.5, 3, 100])
def test_a_plateau_of_slow_steps_is_cut_where_it_ends(warmup: int, factor: float) -> None:
    values = steady(warmup, 40)
    series = [value * factor for value in values[:warmup]] + values[warmup:]
    assert steady_start(series) == warmup


@pytest.mark.parametrize("half_life", [1.0, 2.0, 4.0])
def test_a_decay_is_cut_where_it_no_longer_matters(half_life: float) -> None:
    for seed in SEEDS:
        values = steady(seed, 90)
        series = [value * (1 + 5 * 0.5 ** (i / half_life)) for i, value in enumerate(values)]
        start = steady_start(series)
        assert start is not None
        left_over = sum(5 * 0.5 ** (i / half_life) for i in range(start, 90)) / (90 - start)
        assert left_over < 0.02


def test_too_short_a_look_at_a_warm_up_is_not_steady() -> None:
    values = steady(3, 12)
    series = [value * 3 for value in values[:8]] + values[8:]
    assert steady_start(series) is None


@pytest.mark.parametrize("slope", [0.01, -0.01])
def test_a_drift_is_never_steady(slope: float) -> None:
    for seed in SEEDS:
        series = [value * (1 + slope * i) for i, value in enumerate(steady(seed, 60))]
        assert steady_start(series) is None


def test_lone_spikes_are_not_warm_up() -> None:
    for seed in SEEDS:
        series = steady(seed, 40)
        for place in (7, 20, 33, 39):
            series[place] *= 20
        assert steady_start(series) in (0, 1)


def test_a_second_slow_step_after_a_fast_one_is_cut_too() -> None:
    """The first step loads kernels, the third recompiles."""
    assert steady_start([10.0, 0.01, 3.0, *steady(1, 9)]) == 3


@pytest.mark.parametrize("series", [[], [1.0], [1.0, 2.0], [1.0] * (MIN_STEADY - 1)])
def test_few_values_are_not_steady_yet(series: list[float]) -> None:
    assert steady_start(series) is None


@pytest.mark.parametrize("n", [MIN_STEADY, 50])
def test_constants_are_steady(n: int) -> None:
    assert steady_start([0.125] * n) == 0


@given(st.lists(st.floats(1e-6, 1e3), max_size=40))
def test_the_tail_is_the_greater_part_and_never_short(series: list[float]) -> None:
    start = steady_start(series)
    if start is not None:
        # One more may be cut where the start lies on a spike.
        assert 0 <= start <= len(series) // 2 + 1
        assert len(series) - start >= MIN_STEADY - 1


@given(st.lists(st.integers(1, 10**6), min_size=8, max_size=30), st.integers(-20, 20))
def test_the_unit_of_time_does_not_matter(series: list[int], exponent: int) -> None:
    scaled = [value * 2.0**exponent for value in series]
    assert steady_start(scaled) == steady_start(series)


def test_a_timer_that_asks_after_every_step_stops_soon_and_past_the_warm_up() -> None:
    """The way it is used: the first answer that is not None ends the warm-up."""
    for seed in SEEDS:
        values = steady(seed, 60, cv=0.02)
        series = [5.0, values[0] * 4, values[1] * 2, *values[2:]]
        asked = next(n for n in range(len(series)) if steady_start(series[:n]) is not None)
        assert 3 + MIN_STEADY <= asked <= 20


def test_an_answer_once_given_for_a_quiet_series_stays() -> None:
    series = [10.0, *steady(5, 80, cv=0.001)]
    answers = [steady_start(series[:n]) for n in range(MIN_STEADY + 1, len(series))]
    assert all(before == after == 1 for before, after in pairwise(answers))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_the_score_counts_pairs(values: list[int]) -> None:
    pairs = itertools.combinations(values, 2)
    assert _rises_less_falls(values) == sum((b > a) - (b < a) for a, b in pairs)


@pytest.mark.parametrize("values", [[1, 2, 3, 4, 5], [1, 1, 2, 3, 3], [1, 1, 1, 1, 2, 2]])
def test_the_variance_is_that_over_all_orders(values: list[int]) -> None:
    scores = [_rises_less_falls(order) for order in itertools.permutations(values)]
    assert _variance_of_score(values) == pytest.approx(sum(s * s for s in scores) / len(scores))


def test_a_worked_example() -> None:
    """S = 8 of 10 pairs of 5 values: z = 7 / sqrt(50/3) = 1.7146, p = 0.08641 by normal tables."""
    found = trend([1.0, 3.0, 2.0, 4.0, 5.0])
    assert found.p_value == pytest.approx(0.08641, abs=1e-5)
    assert found.change == pytest.approx(4.5 / 2.0 - 1)


def test_a_spike_is_not_a_trend() -> None:
    assert trend([1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.0, 50.0]).p_value > 0.1


def test_false_alarms_are_as_rare_as_the_p_value_says() -> None:
    draw, n_draws = random.Random(5), 2000
    alarms = sum(trend([draw.random() for _ in range(20)]).p_value < 0.05 for _ in range(n_draws))
    assert n_draws * 0.03 < alarms < n_draws * 0.065


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [2.0] * 50])
def test_constants_have_no_trend(values: list[float]) -> None:
    found = trend(values)
    assert (found.change, found.p_value) == (0.0, 1.0)
