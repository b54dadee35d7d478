"""The mean of a series whose values depend on one another."""

import random
from statistics import fmean

import pytest

from peakward.stats.batch_means import mean_interval


def test_of_few_values_there_is_none():
    assert mean_interval([1.0] * 19) is None
    assert mean_interval([1.0] * 20).estimate == 1.0


def test_against_students_t_by_hand():
    # Stretches of two with means 0 to 9: deviation 3.0277, t of 9 degrees 2.2622.
    found = mean_interval([float(i // 2) for i in range(20)])
    assert found.estimate == 4.5
    assert found.high - 4.5 == pytest.approx(2.2622 * 3.02765 / 10**0.5, rel=1e-4)
    assert 4.5 - found.low == pytest.approx(found.high - 4.5)


def test_bursts_within_a_stretch_do_not_widen_it():
    found = mean_interval([1.0, 1.0, 1.0, 5.0] * 10)
    assert (found.low, found.estimate, found.high) == (2.0, 2.0, 2.0)


def test_stretches_of_a_known_cycle_leave_its_own_spread_out():
    cycle = [8.0, 3.0, 6.0, 1.0]
    found = mean_interval(cycle * 3, n_batches=3)
    assert (found.low, found.estimate, found.high) == (4.5, 4.5, 4.5)
    assert mean_interval(cycle * 5).high > 4.5, "ten stretches of two are no whole cycles"


def test_what_is_left_over_counts_in_the_mean():
    values = [9.0, *([1.0] * 20)]
    found = mean_interval(values)
    assert found.estimate == fmean(values)
    assert found.high == found.low


def test_it_covers_the_mean_of_values_that_depend():
    drawn = random.Random(0)
    hits = 0
    for _ in range(300):
        level, values = 0.0, []
        for _ in range(400):
            level = 0.7 * level + drawn.gauss(0, 1)
            values.append(level)
        found = mean_interval(values)
        hits += found.low <= 0 <= found.high
    assert hits / 300 > 0.9
