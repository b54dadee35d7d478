"""Decides when warm-up is over, and whether a series of times rises or falls."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median

MIN_STEADY = 6
"""The fewest values that can be called steady."""
TREND_P_VALUE = 0.1
"""A tail that falls this significantly is not steady yet. A false alarm costs one more warm-up step."""
TREND_CHANGE = 0.02
"""The least change that counts: long series have significant drifts of 0.1%."""
RESOLUTION = 0.005
"""Differences below this share of the median are ignored, because step times repeat no better."""
_MEDIAN_DIFFERENCE = 0.954
"""Median |x - y| of two normal values, in standard deviations: 0.6745·√2."""


def _without_lone_spikes(values: Sequence[float]) -> list[float]:
    """Running medians of three, the first value kept (Tukey 1977, "Exploratory data analysis", 7).

    A single slow step among fast ones (a page fault, a garbage collection) is not warm-up, yet one
    spike would outweigh the whole tail in the rule below. Steps and slopes pass unchanged. A slow
    last value may be a spike and is cut to its neighbours; a fast one is the news itself.
    """
    inner = [median(values[i - 1 : i + 2]) for i in range(1, len(values) - 1)]
    return [values[0], *inner, min(values[-1], max(values[-3:-1]))]


def _noise(values: Sequence[float]) -> float:
    """The standard deviation of the noise, from successive differences, which no slope inflates."""
    steps = [abs(after - before) for before, after in pairwise(values)]
    return max(median(steps) / _MEDIAN_DIFFERENCE, RESOLUTION * median(values))


def _truncation(values: Sequence[float], noise: float) -> int:
    """The start d that minimises the squared standard error of the mean of values[d:].

    MSER: White 1997, "An effective truncation heuristic for bias reduction in simulation output",
    with the variance of the noise added to that of the tail, so that a few last values which agree
    by chance are not preferred to all (without it 20 to 40% of steady series of 20 to 60 values
    were cut in their second half). Sums run from the end: a huge first value spoils no digits.
    """
    best, best_error = 0, float("inf")
    mean = squares = 0.0
    for start in reversed(range(len(values))):
        n = len(values) - start
        delta = values[start] - mean
        mean += delta / n
        squares += delta * (values[start] - mean)
        error = (squares / n + noise * noise) / n
        if error <= best_error:
            best, best_error = start, error
    return best


def steady_start(times_s: Sequence[float]) -> int | None:
    """The index from which the step times are steady; None where they are not, or not yet.

    The rule is MSER on the series without its lone spikes, on single values (not batches of 5, because
    warm-up is a few steps long). A truncation in the second half means that too few values were seen (same
    paper); so does a tail that still rises or falls by Mann–Kendall. The index never lies on a value slower
    than all that follow.
    """
    if len(times_s) < MIN_STEADY:
        return None
    smooth = _without_lone_spikes(times_s)
    start = _truncation(smooth, _noise(times_s))
    if start > len(smooth) // 2 or len(smooth) - start < MIN_STEADY:
        return None
    if times_s[start] > max(smooth[start:]):
        start += 1
    # The test takes raw values: smoothing ties neighbours together, which tripled its false alarms.
    tail = trend(times_s[start:])
    drifts = tail.p_value < TREND_P_VALUE and abs(tail.change) > TREND_CHANGE
    return None if drifts else start


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The relative change from the median of the first third to that of the last, and its p-value.

    `p_value` is the probability that values in random order rise or fall at least as steadily.
    """

    change: float
    p_value: float


def _rises_less_falls(values: Sequence[float]) -> int:
    """Kendall's S: the pairs with a greater later value, minus the pairs with a smaller one."""
    seen: list[float] = []
    score = 0
    for value in values:
        score += bisect_left(seen, value) - (len(seen) - bisect_right(seen, value))
        insort(seen, value)
    return score


def _variance_of_score(values: Sequence[float]) -> float:
    """The variance of Kendall's S over random orders, with ties (Kendall 1975, "Rank correlation
    methods")."""

    def term(n: int) -> int:
        return n * (n - 1) * (2 * n + 5)

    return (term(len(values)) - sum(term(count) for count in Counter(values).values())) / 18


def trend(values: Sequence[float]) -> Trend:
    """The trend of at least one value by the two-sided Mann–Kendall test (Mann 1945).

    It uses only the order, so a spike counts as one value and no distribution is assumed. Below 5 values no
    order is rare enough: p stays above 0.05.
    """
    third = -(-len(values) // 3)
    start, end = median(values[:third]), median(values[-third:])
    variance = _variance_of_score(values)
    # The score moves in steps of 2, so subtracting 1 is the continuity correction of the normal limit.
    score = max(0, abs(_rises_less_falls(values)) - 1)
    z = score / math.sqrt(variance) if variance else 0.0
    return Trend(change=end / start - 1, p_value=2 * (1 - NormalDist().cdf(z)))
