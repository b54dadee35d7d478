"""The mean of a series whose values depend on one another, with an interval."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from peakward.records.measurement import Interval
from peakward.stats.distributions import student_t_quantile

N_BATCHES = 10
"""Enough batches that Student's t widens the interval little (2.26 against 1.96 deviations)."""


def mean_interval(
    values: Sequence[float], *, n_batches: int = N_BATCHES, level: float = 0.95
) -> Interval | None:
    """The mean of a steady series in its order, with an interval by batch means.

    The series is cut into `n_batches` stretches of equal length. Their means depend on one another far less
    than neighbouring values do, and Student's t applies to them (Law & Kelton 2000, "Simulation modeling and
    analysis", 9.5.3). The result is None where there are fewer than two values a batch.

    Values left over by the division are the first ones. They count in the mean, but not in the interval's
    width.
    """
    length = len(values) // n_batches
    if length < 2:
        return None
    kept = values[len(values) - n_batches * length :]
    means = [fmean(kept[i : i + length]) for i in range(0, len(kept), length)]
    mean, reach = fmean(values), _reach(means, level)
    return Interval(estimate=mean, low=mean - reach, high=mean + reach, level=level)


def interval_of_means(means: Sequence[float], *, level: float = 0.95) -> Interval:
    """The mean of at least two means of whole measurements, by Student's t."""
    mean, reach = fmean(means), _reach(means, level)
    return Interval(estimate=mean, low=mean - reach, high=mean + reach, level=level)


def _reach(means: Sequence[float], level: float) -> float:
    n = len(means)
    return student_t_quantile((1 + level) / 2, n - 1) * stdev(means) / math.sqrt(n)
