"""How a quantity grows with another: the exponent of a power law."""

import math
from collections.abc import Sequence

from peakward.records.measurement import Interval


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """The k of y = c·x^k, by least squares on the logarithms.

    None for fewer than three distinct x: two points fit any power law exactly.
    """
    if len(set(xs)) < 3:
        return None
    weights = _weights(xs)
    return sum(weight * math.log(y) for weight, y in zip(weights, ys, strict=True))


def exponent_interval(xs: Sequence[float], ys: Sequence[Interval]) -> Interval | None:
    """`exponent` of positive estimates, with the interval that theirs give it.

    It is a weighted sum of logarithms, so its limits are by the method of variance estimates recovery
    (Zou & Donner 2008, as in `stats.compare`): it says how well the ys are known, not how well a
    power law fits them. None for fewer than three distinct x.
    """
    found = exponent(xs, [each.estimate for each in ys])
    if found is None:
        return None
    terms = [
        (weight * math.log(each.low / each.estimate), weight * math.log(each.high / each.estimate))
        for weight, each in zip(_weights(xs), ys, strict=True)
    ]
    return Interval(
        estimate=found,
        low=found - math.hypot(*(min(term) for term in terms)),
        high=found + math.hypot(*(max(term) for term in terms)),
        level=ys[0].level,
    )


def _weights(xs: Sequence[float]) -> list[float]:
    """Returns the weights that the logarithms of y have in the slope; their sum is 0."""
    log_x = [math.log(x) for x in xs]
    mean = sum(log_x) / len(log_x)
    spread = sum((x - mean) ** 2 for x in log_x)
    return [(x - mean) / spread for x in log_x]
