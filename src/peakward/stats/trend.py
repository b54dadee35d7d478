"""Tests whether a series of times rises or falls, and by how much."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median


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
