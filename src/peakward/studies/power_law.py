"""How a quantity grows with another: the exponent of a power law."""

import math
from collections.abc import Sequence


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """The k of y = c·x^k, by least squares on the logarithms.

    None for fewer than three distinct x: two points fit any power law exactly.
    """
    if len(set(xs)) < 3:
        return None
    log_x, log_y = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_x, mean_y = sum(log_x) / len(xs), sum(log_y) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(log_x, log_y, strict=True))
    return covariance / sum((x - mean_x) ** 2 for x in log_x)
