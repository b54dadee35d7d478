"""What a worker does to measure a case, or two in turn."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from statistics import median
from typing import NamedTuple
from typing import Protocol as Interface

import msgspec

from peakward.lab.levers.marks import Mark
from peakward.lab.measure import compile_report, memory
from peakward.lab.measure.messages import (
    Arm,
    Event,
    Measured,
    MeasureRequest,
    PairsOutcome,
    PairsRequest,
    Stage,
)
from peakward.lab.measure.site import Site
from peakward.lab.measure.telemetry import Watch
from peakward.lab.measure.timer import Report, Timing, time_phases, time_steps
from peakward.records.case import ModelCase, OperatorCase
from peakward.records.errors import PeakwardError
from peakward.records.trial import Pair

KEPT_WARMUP_STEPS = 2
"""For an arm that ran a moment ago and was kept."""
ARMS: dict[str, Arm] = {"A": "base", "B": "candidate"}

Tell = Callable[[Event], None]


class Prepared(Interface):
    """What a job needs of a case that was built."""

    @property
    def n_parameters(self) -> int | None:
        """Of the model; None for an operator."""

    @property
    def times_phases(self) -> bool:
        """Whether `step` marks its phases as they run."""

    def step(self, mark: Mark = ...) -> None:
        """One whole step."""

    def ranged(self) -> AbstractContextManager[None]:
        """While it lasts, steps open the ranges of `levers.ranges`."""

    def loss(self) -> float | None:
        """Of the last step."""


Prepare = Callable[[ModelCase | OperatorCase], AbstractContextManager[Prepared]]


class Bench(NamedTuple):
    """What every job is given beside its request."""

    site: Site
    prepare: Prepare
    tell: Tell


def measure(request: MeasureRequest, bench: Bench) -> Measured:
    """Build the case, time it, take its phases and its peak memory.

    Raises:
        PeakwardError: the case cannot be built here, or its loss is not finite.
        OverLimitError: it ran, but in more than its memory limit.
    """
    case, protocol = request.case, request.protocol
    clock, watch = bench.site.clock(case.device), bench.site.watch(case.device)
    with built(case, bench) as (prepared, meter):
        timing = time_steps(
            prepared.step,
            protocol,
            clock,
            watch=watch,
            on_warmup=report(bench, "warming up", protocol.warmup_steps),
            on_timed=report(bench, "timing", protocol.max_steps),
        )
        loss = checked_loss(prepared.loss(), timing)
        phases = (
            time_phases(prepared.step, clock, step_s=median(timing.run.steps_s))
            if protocol.phases and prepared.times_phases
            else ()
        )
        use = meter.use()
        n_parameters = prepared.n_parameters
    memory.check_fits(use, case.memory_limit_bytes)
    return Measured(
        run=timing.run,
        doubts=doubts(timing, watch),
        phases=phases,
        memory=use,
        telemetry=watch.telemetry(len(timing.run.steps_s)),
        compile=compile_report.read(timing.run) if _compiles(case) else None,
        n_parameters=n_parameters,
        loss=loss,
    )


def doubts(timing: Timing, watch: Watch) -> tuple[str, ...]:
    """What speaks against the times beside the times themselves."""
    return tuple(each for each in (timing.unsteady, watch.doubt()) if each is not None)


class Visit(NamedTuple):
    """One arm's stay on the device: a median step time for each letter, and the peak."""

    medians_s: tuple[float, ...]
    peak_bytes: int
    doubts: tuple[str, ...]


def time_pairs(request: PairsRequest, bench: Bench) -> PairsOutcome:
    """Time the arms in the order asked for, one resident at a time.

    Raises:
        As `measure`; the last event told says which arm it was.
    """
    medians: list[float] = []
    doubted: dict[str, None] = {}
    peaks: dict[Arm, int] = {"base": 0, "candidate": 0}
    for letter, letters in groupby(request.order):
        arm = ARMS[letter]
        visit = _visit(request, arm, len(list(letters)), bench)
        medians.extend(visit.medians_s)
        doubted |= dict.fromkeys(visit.doubts)
        peaks[arm] = max(peaks[arm], visit.peak_bytes)
        bench.site.leave(request.base.device)
    return PairsOutcome(
        pairs=paired(request.order, medians, request.process),
        base_peak_bytes=peaks["base"],
        candidate_peak_bytes=peaks["candidate"],
        doubts=tuple(doubted),
    )


def paired(order: str, medians_s: list[float], process: int) -> tuple[Pair, ...]:
    """Letters 1 and 2 make a pair, 3 and 4 the next, whichever of the two came first."""
    pairs = []
    for i in range(0, len(order), 2):
        by_letter = dict(zip(order[i : i + 2], medians_s[i : i + 2], strict=True))
        pairs.append(Pair(process=process, base_s=by_letter["A"], candidate_s=by_letter["B"]))
    return tuple(pairs)


def _visit(request: PairsRequest, arm: Arm, n_letters: int, bench: Bench) -> Visit:
    case = request.base if arm == "base" else request.candidate
    clock = bench.site.clock(case.device)
    protocol, medians, doubted = request.protocol, list[float](), list[str]()
    with built(case, bench, arm) as (prepared, meter):
        for _ in range(n_letters):
            watch = bench.site.watch(case.device)
            timing = time_steps(
                prepared.step,
                protocol,
                clock,
                watch=watch,
                on_warmup=report(bench, "warming up", protocol.warmup_steps, arm),
                on_timed=report(bench, "timing", protocol.max_steps, arm),
            )
            checked_loss(prepared.loss(), timing)
            medians.append(median(timing.run.steps_s))
            doubted.extend(doubts(timing, watch))
            protocol = msgspec.structs.replace(protocol, warmup_steps=KEPT_WARMUP_STEPS)
        use = meter.use()
    memory.check_fits(use, case.memory_limit_bytes)
    return Visit(tuple(medians), use.peak_allocated_bytes, tuple(doubted))


def checked_loss(loss: float | None, timing: Timing) -> float | None:
    """The loss, if it is finite.

    Raises:
        PeakwardError: it is not.
    """
    if loss is not None and not math.isfinite(loss):
        n_steps = len(timing.run.warmup_s) + len(timing.run.steps_s)
        raise PeakwardError(f"expected a finite loss, got {loss} after {n_steps} steps")
    return loss


@contextmanager
def built(
    case: ModelCase | OperatorCase, bench: Bench, arm: Arm | None = None
) -> Iterator[tuple[Prepared, memory.Meter]]:
    """The case on its device, under its memory limit, for as long as the block lasts."""
    bench.tell(Event(stage="building", arm=arm))
    bench.site.enter(case.device)
    with (
        bench.site.limited(case),
        bench.site.meter(case.device) as meter,
        bench.prepare(case) as prepared,
    ):
        yield prepared, meter


def report(bench: Bench, stage: Stage, total: int | None, arm: Arm | None = None) -> Report:
    """Tells the parent how many steps of a stage were issued."""
    return lambda n: bench.tell(Event(stage=stage, done=n, total=total, arm=arm))


def _compiles(case: ModelCase | OperatorCase) -> bool:
    setting = case.configuration.compile if isinstance(case, ModelCase) else case.compile
    return setting != "none"
