"""The interval of a paired ratio, and what is concluded from it."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.records.measurement import Interval
from peakward.records.trial import Pair
from peakward.stats.pairs import energy_interval, inverted, ratio_interval


def pairs_of(*ratios: float, base_s: float = 0.01) -> list[Pair]:
    return [Pair(process=0, base_s=base_s, candidate_s=base_s * ratio) for ratio in ratios]


def test_a_worked_example() -> None:
    """Log-ratios -0.2, -0.1, 0.0: mean -0.1, standard error 0.1/sqrt(3), t(0.975, 2) = 4.302653."""
    interval = ratio_interval(pairs_of(*(math.exp(x) for x in (-0.2, -0.1, 0.0))))
    half_width = 4.302653 * 0.1 / math.sqrt(3)
    assert interval.estimate == pytest.approx(math.exp(-0.1))
    assert interval.low == pytest.approx(math.exp(-0.1 - half_width), rel=1e-6)
    assert interval.high == pytest.approx(math.exp(-0.1 + half_width), rel=1e-6)
    assert interval.level == 0.95


def test_the_process_is_the_unit_where_there_are_several() -> None:
    """Process means of the log-ratios -0.2, -0.1, 0.0, whatever lies about them: as above."""
    logs = [(-0.25, -0.15), (-0.1, -0.1, -0.1), (-0.03, 0.03)]
    pairs = [
        Pair(process=i, base_s=0.01, candidate_s=0.01 * math.exp(x))
        for i, of_process in enumerate(logs)
        for x in of_process
    ]
    interval = ratio_interval(pairs)
    half_width = 4.302653 * 0.1 / math.sqrt(3)
    assert interval.low == pytest.approx(math.exp(-0.1 - half_width), rel=1e-6)
    assert interval.high == pytest.approx(math.exp(-0.1 + half_width), rel=1e-6)


def test_what_slows_both_arms_cancels() -> None:
    drifting = [Pair(process=0, base_s=s, candidate_s=0.8 * s) for s in (0.01, 0.02, 0.05, 0.011)]
    interval = ratio_interval(drifting)
    assert (interval.low, interval.high) == pytest.approx((0.8, 0.8))


@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=12))
def test_swapping_the_arms_inverts_the_interval(ratios: list[float]) -> None:
    forth = ratio_interval(pairs_of(*ratios))
    back = ratio_interval(pairs_of(*(1 / ratio for ratio in ratios)))
    assert forth.low <= forth.estimate <= forth.high
    assert (1 / back.high, 1 / back.estimate, 1 / back.low) == pytest.approx(
        (forth.low, forth.estimate, forth.high)
    )


def test_it_covers_the_true_ratio_as_often_as_it_says() -> None:
    draw, n_draws, true_ratio = random.Random(13), 1000, 0.9
    hits = 0
    for _ in range(n_draws):
        noisy = (true_ratio * draw.lognormvariate(0, 0.05) for _ in range(6))
        interval = ratio_interval(pairs_of(*noisy))
        hits += interval.low <= true_ratio <= interval.high
    assert abs(hits - 950) < 3.5 * math.sqrt(1000 * 0.95 * 0.05)


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_pairs_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="expected at least two pairs"):
        ratio_interval(pairs_of(*[0.9] * n))


def test_an_inverted_ratio_keeps_its_ends_in_order():
    interval = inverted(Interval(estimate=0.5, low=0.4, high=0.8))
    assert (interval.low, interval.estimate, interval.high) == (1.25, 2.0, 2.5)


def test_energy_is_compared_as_time_is_where_every_pair_has_it() -> None:
    times = [(1.0, 0.5), (1.1, 0.6), (0.9, 0.4)]
    pairs = [
        Pair(process=i, base_s=2.0, candidate_s=2.0, base_j=base, candidate_j=candidate)
        for i, (base, candidate) in enumerate(times)
    ]
    as_times = [
        Pair(process=i, base_s=base, candidate_s=candidate)
        for i, (base, candidate) in enumerate(times)
    ]
    assert energy_interval(pairs) == ratio_interval(as_times)
    assert energy_interval([*pairs, as_times[0]]) is None
    assert energy_interval(pairs[:1]) is None
