"""Tests whether values fall into two groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MIN_VALUES = 20
"""The fewest values to test. With 10 values one normal sample in fifty splits by the rule below, with 20 none
of a thousand did."""
MIN_SHARE = 0.2
"""The minimum share of the smaller group. A smaller group is outliers, which do not move the median."""
MIN_DISTANCE_SD = 6.0
"""The minimum distance of the groups' means, in standard deviations within them. The halves of a normal
distribution are 2.6 apart, those of a uniform one 3.5; 20 exponential values reach 6 by chance once in
fifty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoModes:
    """The medians of the lower and the upper group, and the share of the values in the upper one."""

    lower: float
    upper: float
    upper_share: float


def _best_split(ordered: Sequence[float]) -> int:
    """The size of the lower group where the split explains most of the variance.

    Otsu 1979, "A threshold selection method from gray-level histograms", equation 18, on values.
    """
    n, total, below = len(ordered), math.fsum(ordered), 0.0
    best, best_between = 1, -1.0
    for k in range(1, n):
        below += ordered[k - 1]
        gap = (total - below) / (n - k) - below / k
        between = k * (n - k) * gap * gap
        if between > best_between:
            best, best_between = k, between
    return best


def two_modes(values: Sequence[float]) -> TwoModes | None:
    """The two groups of the values, or None where one group suffices or the values are few."""
    if len(values) < MIN_VALUES:
        return None
    ordered = sorted(values)
    k = _best_split(ordered)
    groups = (ordered[:k], ordered[k:])
    if min(len(group) for group in groups) < MIN_SHARE * len(ordered):
        return None
    means = [math.fsum(group) / len(group) for group in groups]
    squares = math.fsum(
        (value - mean) ** 2 for group, mean in zip(groups, means, strict=True) for value in group
    )
    if means[1] - means[0] <= MIN_DISTANCE_SD * math.sqrt(squares / len(ordered)):
        return None
    return TwoModes(
        lower=median(groups[0]),
        upper=median(groups[1]),
        upper_share=len(groups[1]) / len(ordered),
    )
