"""The trend test against its definition and a worked example."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.stats.trend import _rises_less_falls, _variance_of_score, trend


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
