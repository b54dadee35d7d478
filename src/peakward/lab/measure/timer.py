"""Times steps and their phases without disturbing them, and decides when there are enough of them."""

import gc
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from time import perf_counter
from typing import NamedTuple

from peakward.lab.levers.ranges import Mark
from peakward.lab.measure.clock import Clock
from peakward.records.measurement import Phase, PhaseTime, Protocol, Run
from peakward.stats.steady import steady_start

REPORT_PERIOD_S = 0.25
PHASES_S = 1.0
MIN_PHASE_STEPS = 3
MAX_PHASE_STEPS = 20


class StepProgress(NamedTuple):
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


Done = Callable[[StepProgress], bool]
Report = Callable[[int], None]
"""A function that is told from time to time how many steps were issued."""


class Timing(NamedTuple):
    """The result of timing."""

    run: Run
    unsteady: str | None
    """The reason why the steps are not steady; None if they are, or if warm-up had a fixed length."""


def ignore(_n_issued: int) -> None:
    """Ignores the progress."""


def time_steps(
    step: Callable[[], object],
    protocol: Protocol,
    clock: Clock,
    *,
    watch: AbstractContextManager[object] | None = None,
    on_warmup: Report = ignore,
    on_timed: Report = ignore,
) -> Timing:
    """Warms up, then times steps, as the protocol says.

    `watch` is entered for the timed steps only. Python's garbage collector is paused meanwhile:
    reference cycles that a step leaves are collected afterwards.
    """
    on_warmup(0)
    warmup_s = _warm_up(step, protocol, clock, on_warmup)
    on_timed(0)
    with collector_paused(), watch or nullcontext():
        steps_s = run_steps(
            step,
            clock,
            max_steps=protocol.max_steps,
            done=lambda progress: timing_done(progress, protocol),
            report=on_timed,
        )
    tested = protocol.warmup_steps is None
    return Timing(
        run=Run(warmup_s=warmup_s, steps_s=steps_s),
        unsteady=unsteady_reason(warmup_s, steps_s) if tested else None,
    )


def run_steps(
    step: Callable[[], object], clock: Clock, *, max_steps: int, done: Done, report: Report = ignore
) -> tuple[float, ...]:
    """Runs up to `max_steps` steps. Returns the seconds between each mark and the next.

    Steps are issued in chunks of about 5 ms with only a mark between them. After each chunk the host
    waits for the end of the chunk `clock.look_back` before it, and then asks `done`. It so neither runs
    ahead without bound nor lets the device run out of work. Times are read where `done` looks at a
    sample of them, and all at the end.
    """
    clock.reserve(max_steps + 1)
    ends: deque[int] = deque()
    n_issued, n_ended, chunk = 0, 0, 1
    started = looked = reported = perf_counter()
    mark = clock.mark

    def look() -> list[float]:
        nonlocal looked
        looked = perf_counter()
        return _sample(clock, n_ended)

    mark(0)
    while n_issued < max_steps:
        for i in range(n_issued + 1, min(n_issued + chunk, max_steps) + 1):
            step()
            mark(i)
        n_issued = min(n_issued + chunk, max_steps)
        ends.append(n_issued)
        if len(ends) > clock.look_back:
            n_ended = ends.popleft()
            clock.wait(n_ended)
            chunk = chunk_steps(clock.between_s(n_ended - 1, n_ended))
        now = perf_counter()
        if now - reported >= REPORT_PERIOD_S:
            reported = now
            report(n_issued)
        if done(StepProgress(n_issued, now - started, n_ended, now - looked, look)):
            break
    clock.wait(n_issued)
    return tuple(clock.between_s(i, i + 1) for i in range(n_issued))


def _sample(clock: Clock, n_ended: int) -> list[float]:
    stride = -(-n_ended // SAMPLE) or 1
    return [clock.between_s(i, i + 1) for i in range(0, n_ended, stride)]


def _warm_up(
    step: Callable[[], object], protocol: Protocol, clock: Clock, report: Report
) -> tuple[float, ...]:
    n_steps = protocol.warmup_steps
    if n_steps is not None:
        return run_steps(step, clock, max_steps=n_steps, done=_never, report=report)
    return run_steps(
        step,
        clock,
        max_steps=MAX_WARMUP_STEPS,
        done=lambda progress: warmup_done(progress, protocol.max_timed_s),
        report=report,
    )


def _never(_progress: StepProgress) -> bool:
    return False


def time_phases(
    step: Callable[[Mark], None], clock: Clock, *, step_s: float
) -> tuple[PhaseTime, ...]:
    """The phases of a step that takes about `step_s`, in steps of their own.

    The host does not wait between steps, so its lead hides its launches as it does in the timed steps.
    """
    n_steps = max(MIN_PHASE_STEPS, min(MAX_PHASE_STEPS, round(PHASES_S / max(step_s, 1e-6))))
    marked: list[Phase | None] = []
    step(marked.append)
    clock.reserve(len(marked) * n_steps)
    names: list[Phase | None] = []

    def mark(phase: Phase | None) -> None:
        clock.mark(len(names))
        names.append(phase)

    with collector_paused():
        for _ in range(n_steps):
            step(mark)
        clock.wait(len(names) - 1)
    spans = [
        clock.between_s(i, i + 1) if phase is not None else 0.0 for i, phase in enumerate(names)
    ]
    return phase_times(names, spans)


def phase_times(names: Sequence[Phase | None], spans_s: Sequence[float]) -> tuple[PhaseTime, ...]:
    """The median over steps of each phase's time, summed over the micro-batches of a step.

    `names` are the phases in the order they began, None at the end of each step; `spans_s` the seconds
    from each to the next.
    """
    steps: list[dict[Phase, float]] = [{}]
    for phase, span_s in zip(names, spans_s, strict=True):
        if phase is None:
            steps.append({})
        else:
            steps[-1][phase] = steps[-1].get(phase, 0.0) + span_s
    by_phase: dict[Phase, list[float]] = {}
    for step in steps:
        for phase, total_s in step.items():
            by_phase.setdefault(phase, []).append(total_s)
    return tuple(
        PhaseTime(phase=phase, median_s=median(totals), n=len(totals))
        for phase, totals in by_phase.items()
    )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collects, then keeps Python's garbage collector from running until the end."""
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    if not was_frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        if not was_frozen:
            gc.unfreeze()


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


def timing_done(progress: StepProgress, protocol: Protocol) -> bool:
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


def warmup_done(progress: StepProgress, max_s: float) -> bool:
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
