"""Whether a series of times climbs or falls, and by how much."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The relative change from the median of the first third to that of the last, and its chance.

    `p_value` is how often values in random order would rise or fall at least as steadily.
    """

    change: float
    p_value: float


def _rises_less_falls(values: Sequence[float]) -> int:
    """Kendall's S: pairs in which the later value is greater, less those in which it is smaller."""
    seen: list[float] = []
    score = 0
    for value in values:
        score += bisect_left(seen, value) - (len(seen) - bisect_right(seen, value))
        insort(seen, value)
    return score


def _variance_of_score(values: Sequence[float]) -> float:
    """Of Kendall's S over random orders, ties included (Kendall 1975, "Rank correlation methods")."""

    def term(n: int) -> int:
        return n * (n - 1) * (2 * n + 5)

    return (term(len(values)) - sum(term(count) for count in Counter(values).values())) / 18


def trend(values: Sequence[float]) -> Trend:
    """The trend of at least one value by the Mann–Kendall test (Mann 1945), two-sided.

    It looks at the order alone, so a spike counts as one value and needs no distribution. Below 5
    values no order is rare enough to speak of: p stays above 0.05.
    """
    third = -(-len(values) // 3)
    start, end = median(values[:third]), median(values[-third:])
    variance = _variance_of_score(values)
    # The score moves in steps of 2: one less is the continuity correction of the normal limit.
    score = max(0, abs(_rises_less_falls(values)) - 1)
    z = score / math.sqrt(variance) if variance else 0.0
    return Trend(change=end / start - 1, p_value=2 * (1 - NormalDist().cdf(z)))
