"""Compares two medians that were measured at different times: how they differ, and how surely."""

import math
from typing import Literal

from peakward.records.measurement import Interval

Change = Literal["slower", "faster", "same", "inconclusive"]


def median_ratio(before: Interval, after: Interval) -> Interval:
    """The ratio after / before of two positive medians, from the interval of each.

    The method of variance estimates recovery on logarithms: with d = ln after − ln before, the
    lower limit is d − √((ln after − ln after_low)² + (ln before_high − ln before)²), the upper one
    its mirror image (Zou & Donner 2008, Statistics in Medicine 27:1693). Unlike a
    normal approximation it keeps the skew of bootstrap intervals. It knows nothing of what varies
    between runs and shows in neither interval, hence the threshold of `judge_change`.

    Raises:
        ValueError: the two intervals have different levels, or a limit is not positive.
    """
    if before.level != after.level:
        raise ValueError(f"expected intervals of one level, got {before.level} and {after.level}")
    if min(before.low, after.low) <= 0:
        raise ValueError(f"expected positive limits, got {before.low} and {after.low}")
    difference = math.log(after.estimate / before.estimate)
    down = math.hypot(math.log(after.estimate / after.low), math.log(before.high / before.estimate))
    up = math.hypot(math.log(after.high / after.estimate), math.log(before.estimate / before.low))
    return Interval(
        estimate=math.exp(difference),
        low=math.exp(difference - down),
        high=math.exp(difference + up),
        level=before.level,
    )


def judge_change(ratio: Interval, *, threshold: float) -> Change:
    """The change that a time ratio proves when changes within `threshold` do not matter.

    The band is 1 / (1 + threshold) … 1 + threshold. `slower`: the whole interval lies above it. `faster`: it
    lies below. `same`: it lies inside. `inconclusive`: otherwise.
    """
    upper = 1 + threshold
    lower = 1 / upper
    if ratio.low > upper:
        return "slower"
    if ratio.high < lower:
        return "faster"
    if lower <= ratio.low and ratio.high <= upper:
        return "same"
    return "inconclusive"
