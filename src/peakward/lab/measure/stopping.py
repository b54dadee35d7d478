"""Decides when warming up and timing have gone on long enough. All functions are pure."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from peakward.records.measurement import Protocol
from peakward.stats.steady import steady_start

CHUNK_S = 0.005
"""The seconds of work issued between two looks at the clock: they hide a decision of some 20 µs, and
keep a GPU's queue from running dry."""
MAX_CHUNK = 128
SAMPLE = 100
"""The most times that a look reads: the time between two CUDA events takes about 1 µs to read. It is at
least MAX_WARMUP_STEPS, so a sample of a warm-up has every step."""
LOOK_PERIOD_S = 0.1
"""The seconds between two looks at a sample. They then take 0.15% of a step that waits for its host;
with 250 times a sample and chunks of 64 steps the timer cost such a step 1.5% on an H200."""
LOOK_SHARE = 0.1
"""The time between two looks, as a share of the time that timing has taken: a tenth more steps narrow
the interval by 5%."""
MIN_TIMED_S = 0.5
"""The least time of timing: steps this short cost nothing, and the energy counter needs it."""
MAX_WARMUP_STEPS = 100
MIN_WARMUP_STEPS = 3
"""The least number of warm-up steps, even where each takes long: the first step allocates the
optimiser's state, the second is the first to run with it."""
Z_95 = 1.96


def chunk_steps(step_s: float) -> int:
    """The number of steps to issue before looking back, given how long one takes."""
    return max(1, min(MAX_CHUNK, math.ceil(CHUNK_S / step_s))) if step_s > 0 else MAX_CHUNK


class Progress(NamedTuple):
    """The state of the steps while they run."""

    n_issued: int
    elapsed_s: float
    """The seconds since the first step was issued."""
    n_ended: int
    """The number of steps that are known to have ended."""
    since_look_s: float
    """The seconds since the last look, or since the first step was issued."""
    look: Callable[[], Sequence[float]]
    """Reads the times of at most SAMPLE of the ended steps, evenly spaced."""


def half_width(sample_s: Sequence[float], n: int) -> float:
    """Half the median's 95% interval over the median, for `n` times of which this is a sample.

    The interval of the sample runs between the values of rank (m ± 1.96·√m) / 2 (Conover 1999,
    "Practical nonparametric statistics", 3.2, normal approximation). That of all n is narrower by
    √(m/n). It is infinite below 6 values, where no pair of ranks holds 95%. It takes 20 µs, cheap
    enough while steps are timed; the exact interval of `stats` takes milliseconds.
    """
    m = len(sample_s)
    if m < 6:
        return math.inf
    ordered = sorted(sample_s)
    below = max(0, math.floor((m - Z_95 * math.sqrt(m)) / 2))
    width = ordered[m - 1 - below] - ordered[below]
    return width / 2 / median(ordered) * math.sqrt(m / n)


def timing_done(progress: Progress, protocol: Protocol) -> bool:
    """Whether timing is done."""
    if progress.n_issued < protocol.min_steps:
        return False
    if progress.n_issued >= protocol.max_steps or progress.elapsed_s >= protocol.max_timed_s:
        return True
    if progress.elapsed_s < MIN_TIMED_S or protocol.relative_half_width == 0:
        return False
    if progress.since_look_s < max(LOOK_PERIOD_S, LOOK_SHARE * progress.elapsed_s):
        return False
    return half_width(progress.look(), progress.n_ended) <= protocol.relative_half_width


def warmup_done(progress: Progress, max_s: float) -> bool:
    """Whether to stop warming up: the steps are steady, or MAX_WARMUP_STEPS or `max_s` is reached.

    The first step does not count towards `max_s`: it may compile for minutes.
    """
    if progress.n_issued >= MAX_WARMUP_STEPS:
        return True
    if progress.n_issued < MIN_WARMUP_STEPS or progress.since_look_s < LOOK_PERIOD_S:
        return False
    times_s = progress.look()
    if not times_s:
        return False
    return progress.elapsed_s - times_s[0] >= max_s or steady_start(times_s) is not None


def unsteady_reason(warmup_s: Sequence[float], steps_s: Sequence[float]) -> str | None:
    """The reason why the timed steps are not steady after a warm-up that was to end steady; None if
    they are.

    Warm-up and timed steps are one series. If warm-up ran out of time before the test could decide, the
    timed steps may still show that it was enough.
    """
    for times in (warmup_s, (*warmup_s, *steps_s)):
        start = steady_start(times)
        if start is not None and start <= len(warmup_s):
            return None
    took_s = sum(warmup_s)
    took = f"{took_s:.1f} s" if took_s >= 1 else f"{took_s * 1e3:.1f} ms"
    return f"no steady step time after {len(warmup_s)} warm-up steps in {took} and {len(steps_s)} timed ones"
