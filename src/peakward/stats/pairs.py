"""Compares base and candidate by pairs that ran next to each other."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from peakward.records.measurement import Interval
from peakward.records.trial import Pair
from peakward.stats.distributions import student_t_quantile


def ratio_interval(pairs: Sequence[Pair], *, level: float = 0.95) -> Interval:
    """Candidate's step time over base's: the geometric mean of the pairs' ratios, with its interval.

    The t-interval on log(candidate / base), carried back by exp: a ratio and its inverse then give
    the same answer, and what slows both arms of a pair (the clock of that minute) cancels. A
    process draws its memory layout and its host's speed once for all its pairs, so pairs of
    several processes count as one observation a process, their mean (Kalibera & Jones 2013,
    "Rigorous benchmarking in reasonable time", section 6). Pairs of one process count each, and
    the interval then holds for that process alone.

    Raises:
        ValueError: fewer than two pairs, which have no spread.
    """
    if len(pairs) < 2:
        raise ValueError(f"expected at least two pairs, got {len(pairs)}")
    logs = _observations((pair.process, pair.candidate_s / pair.base_s) for pair in pairs)
    return _interval(logs, level)


def energy_interval(pairs: Sequence[Pair], *, level: float = 0.95) -> Interval | None:
    """Candidate's energy of a step over base's, by the method of `ratio_interval`. None where there are fewer
    than two pairs, or one lacks a side."""
    counted = [
        (pair.process, pair.candidate_j / pair.base_j)
        for pair in pairs
        if pair.base_j and pair.candidate_j
    ]
    if len(counted) < max(2, len(pairs)):
        return None
    return _interval(_observations(counted), level)


def _interval(logs: Sequence[float], level: float) -> Interval:
    centre = fmean(logs)
    t = student_t_quantile((1 + level) / 2, len(logs) - 1)
    half_width = t * stdev(logs) / math.sqrt(len(logs))
    return Interval(
        estimate=math.exp(centre),
        low=math.exp(centre - half_width),
        high=math.exp(centre + half_width),
        level=level,
    )


def _observations(ratios: Iterable[tuple[int, float]]) -> list[float]:
    """The logarithms of the ratios. Several processes count as one mean each."""
    by_process: dict[int, list[float]] = {}
    for process, ratio in ratios:
        by_process.setdefault(process, []).append(math.log(ratio))
    if len(by_process) == 1:
        return next(iter(by_process.values()))
    return [fmean(logs) for logs in by_process.values()]


def inverted(ratio: Interval) -> Interval:
    """The speed-up for a ratio of times."""
    return Interval(
        estimate=1 / ratio.estimate, low=1 / ratio.high, high=1 / ratio.low, level=ratio.level
    )
