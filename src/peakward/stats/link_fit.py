"""Times of a collective as a latency and a rate, and a time from them."""

import math
from bisect import bisect_right
from collections.abc import Sequence

from peakward.records.layout import Collective
from peakward.records.parallel import CollectiveTime, LinkFit


def bus_bytes(collective: Collective, n_bytes: float, n_ranks: int) -> float:
    """Bytes that each rank sends at least (NVIDIA nccl-tests, doc/PERFORMANCE.md)."""
    if collective == "point-to-point":
        return n_bytes
    share = (n_ranks - 1) / n_ranks
    return n_bytes * (2 * share if collective == "all-reduce" else share)


def fitted(times: Sequence[CollectiveTime], n_ranks: int) -> LinkFit:
    """The least squares of relative errors over one collective's sizes, with a latency of at least 0.

    Raises:
        ValueError: fewer than two sizes, or more than one collective.
    """
    if len({each.collective for each in times}) != 1 or len(times) < 2:
        raise ValueError("expected two sizes and more of one collective")
    collective = times[0].collective
    points = [(bus_bytes(collective, each.n_bytes, n_ranks), each.time_s) for each in times]
    # Minimises the sum of ((latency + slope·b)/t - 1)^2: the normal equations of two unknowns.
    aa = sum(1 / t**2 for _, t in points)
    ab = sum(b / t**2 for b, t in points)
    bb = sum(b**2 / t**2 for b, t in points)
    a, b = sum(1 / t for _, t in points), sum(b / t for b, t in points)
    determinant = aa * bb - ab**2
    latency_s = (a * bb - b * ab) / determinant if determinant > 0 else 0.0
    slope = (aa * b - ab * a) / determinant if determinant > 0 else b / bb
    if latency_s < 0 or slope <= 0:
        latency_s, slope = 0.0, b / bb
    worst = max(abs((latency_s + slope * b) / t - 1) for b, t in points)
    return LinkFit(
        collective=collective, latency_s=latency_s, bus_bytes_per_s=1 / slope, worst_error=worst
    )


def interpolated_s(times: Sequence[CollectiveTime], n_bytes: float) -> float:
    """The time of a size between measured ones, on the line through its neighbours' logarithms; beyond the
    largest by its rate, below the smallest its time.

    NCCL changes algorithm and protocol with the size, which no latency and rate describe: on two H200 these
    were 11% off at 100 MB.
    """
    rows = sorted((each.n_bytes, each.time_s) for each in times)
    if n_bytes <= rows[0][0]:
        return rows[0][1]
    if n_bytes >= rows[-1][0]:
        return rows[-1][1] * n_bytes / rows[-1][0]
    at = bisect_right(rows, (n_bytes, math.inf))
    (low, low_s), (high, high_s) = rows[at - 1], rows[at]
    share = math.log(n_bytes / low) / math.log(high / low)
    return math.exp((1 - share) * math.log(low_s) + share * math.log(high_s))
