"""When warming up and timing have gone on long enough: pure decisions."""

import math
from collections.abc import Sequence
from statistics import median

from peakward.records.protocol import Protocol
from peakward.stats.steady import steady_start

CHUNK_S = 0.005
"""Work issued between two looks at the clock: it hides a decision of some 20 µs, and keeps a GPU's
queue from running dry."""
MAX_CHUNK = 64
MIN_TIMED_S = 0.5
"""No early end before this: steps that short cost nothing, and the energy counter needs it."""
MAX_WARMUP_STEPS = 100
MIN_WARMUP_STEPS = 3
"""Even where each takes long: the first step allocates the optimiser's state, the second is the
first to run with it."""
Z_95 = 1.96


def chunk_steps(step_s: float) -> int:
    """How many steps to issue before looking back, given how long one takes."""
    return max(1, min(MAX_CHUNK, math.ceil(CHUNK_S / step_s))) if step_s > 0 else MAX_CHUNK


def half_width(times_s: Sequence[float]) -> float:
    """Half the median's 95% interval over the median, from the order statistics.

    The interval runs between the values of rank (n ± 1.96·√n) / 2 (Conover 1999, "Practical
    nonparametric statistics", 3.2, normal approximation). Infinite below 6 values, where no pair
    of ranks holds 95%. Cheap enough to ask while steps are being timed: 20 µs for 200 values,
    where the exact interval of `stats` takes milliseconds.
    """
    n = len(times_s)
    if n < 6:
        return math.inf
    ordered = sorted(times_s)
    below = max(0, math.floor((n - Z_95 * math.sqrt(n)) / 2))
    return (ordered[n - 1 - below] - ordered[below]) / 2 / median(ordered)


def timing_done(
    times_s: Sequence[float], n_issued: int, elapsed_s: float, protocol: Protocol
) -> bool:
    """Whether to issue no further step; `times_s` are those of the steps known to have ended."""
    if n_issued < protocol.min_steps:
        return False
    if n_issued >= protocol.max_steps or elapsed_s >= protocol.max_timed_s:
        return True
    return elapsed_s >= MIN_TIMED_S and half_width(times_s) <= protocol.relative_half_width


def warmup_done(times_s: Sequence[float], n_issued: int, elapsed_s: float, max_s: float) -> bool:
    """Whether to stop warming up: steady, or not within MAX_WARMUP_STEPS or `max_s`.

    The first step does not count towards `max_s`: it may compile for minutes.
    """
    if n_issued >= MAX_WARMUP_STEPS:
        return True
    if n_issued < MIN_WARMUP_STEPS or not times_s:
        return False
    return elapsed_s - times_s[0] >= max_s or steady_start(times_s) is not None


def unsteady_reason(warmup_s: Sequence[float], steps_s: Sequence[float]) -> str | None:
    """Why the timed steps cannot be called steady after a warm-up that was to end steady.

    Warm-up and timed steps are one series: where warm-up ran out of time before the test could
    say anything, the timed steps may still show that it was enough.
    """
    for times in (warmup_s, (*warmup_s, *steps_s)):
        start = steady_start(times)
        if start is not None and start <= len(warmup_s):
            return None
    return (
        f"no steady step time after {len(warmup_s)} warm-up steps in {sum(warmup_s):.1f} s "
        f"and {len(steps_s)} timed ones"
    )
