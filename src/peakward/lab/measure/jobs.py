"""The jobs of a worker: measuring a case, or several in turn."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple
from typing import Protocol as Interface

import msgspec

from peakward.lab.debugging import story
from peakward.lab.inference.speed import speculated
from peakward.lab.levers.configured_step import ConfiguredStep
from peakward.lab.levers.given_step import GivenStep
from peakward.lab.levers.module_step import ModuleStep
from peakward.lab.levers.operator_step import PieceStep
from peakward.lab.levers.ranges import Mark
from peakward.lab.measure import compile_report, memory, probe
from peakward.lab.measure.messages import (
    Event,
    Measured,
    MeasureRequest,
    Stage,
    Turn,
    TurnsRequest,
    TurnsTimed,
)
from peakward.lab.measure.site import Site
from peakward.lab.measure.telemetry import Monitor
from peakward.lab.measure.timer import Report, Timing, time_phases, time_steps
from peakward.lab.micro.piece import COMPILED
from peakward.lab.micro.work import piece_work
from peakward.lab.numerics import subjects as numerics
from peakward.lab.quality import subjects as quality
from peakward.records.case import (
    Case,
    LeverCase,
    MicroCase,
    ModelCase,
    ModuleCase,
    NumericsCase,
    OperatorCase,
    QualityCase,
    SpeculationCase,
    StepCase,
)
from peakward.records.errors import PeakwardError
from peakward.records.measurement import MemoryUse, Protocol, Run

Tell = Callable[[Event], None]


class Prepared(Interface):
    """The parts of a built case that a job needs."""

    @property
    def n_parameters(self) -> int | None:
        """The number of the model's parameters; None for an operator."""

    @property
    def times_phases(self) -> bool:
        """Whether `step` marks its phases as they run."""

    @property
    def uncaptured(self) -> Callable[[Mark], None] | None:
        """One step outside of the graph that `step` replays. None where it replays none, or where the
        two do not launch the same work."""

    def step(self, mark: Mark = ...) -> None:
        """One whole step."""

    def ranged(self) -> AbstractContextManager[None]:
        """Makes steps open the ranges of `levers.ranges` while it lasts."""

    def loss(self) -> float | None:
        """The loss of the last step."""

    def held_for_backward_bytes(self) -> int | None:
        """`MemoryUse.held_for_backward_bytes`, from a forward pass of its own after the last step."""


Prepare = Callable[[Case], AbstractContextManager[Prepared]]


class Bench(NamedTuple):
    """The tools that every job is given beside its request."""

    site: Site
    prepare: Prepare
    tell: Tell


def measure(request: MeasureRequest, bench: Bench) -> Measured:
    """Builds the case, times it, and measures its phases and its peak memory.

    Raises:
        PeakwardError: The case cannot be built here, or its loss is not finite.
        OverLimitError: It ran, but in more than its memory limit.
    """
    if isinstance(request.case, SpeculationCase):
        return _speculate(request.case, bench)
    if isinstance(request.case, QualityCase):
        return _score(request.case, bench)
    if isinstance(request.case, NumericsCase):
        return _look(request.case, bench)
    case, protocol = request.case, request.protocol
    clock, watch = bench.site.clock(case.device), bench.site.watch(case.device)
    with built(case, bench) as (prepared, meter):
        timing = time_steps(
            prepared.step,
            _beyond_the_queue(protocol, prepared),
            clock,
            watch=watch,
            on_warmup=report(bench, "warming up", protocol.warmup_steps),
            on_timed=report(bench, "timing", protocol.max_steps),
        )
        # Read before the phases, whose steps take batches as well.
        feeding = (
            prepared.feeding(len(timing.run.steps_s))
            if isinstance(prepared, ConfiguredStep)
            else None
        )
        linear = prepared.linear_choice if isinstance(prepared, ModuleStep | GivenStep) else None
        loader = (
            prepared.waited(len(timing.run.steps_s)) if isinstance(prepared, GivenStep) else None
        )
        loss = checked_loss(prepared.loss(), timing)
        phases = (
            time_phases(prepared.step, clock, step_s=median(timing.run.steps_s))
            if protocol.phases and prepared.times_phases
            else ()
        )
        use = _with_held(meter.use(), prepared)
        n_parameters = prepared.n_parameters
        work = piece_work(prepared.piece) if isinstance(prepared, PieceStep) else None
        # Last, because it takes a step of its own.
        outputs = prepared.outputs() if isinstance(prepared, ConfiguredStep) else None
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
        linear=linear,
        piece=work,
        feeding=feeding,
        loader=loader,
        outputs=outputs,
    )


def _speculate(case: SpeculationCase, bench: Bench) -> Measured:
    """Makes the texts of the case, which times itself: its steps are texts."""
    watch = bench.site.watch(case.device)
    bench.site.enter(case.device)
    bench.tell(Event(stage="building"))
    with bench.site.limited(case), bench.site.meter(case.device) as meter:
        with watch:
            found = speculated(case, report(bench, "timing", case.n_prompts))
        use = meter.use()
    memory.check_fits(use, case.memory_limit_bytes)
    doubt = watch.doubt()
    return Measured(
        run=found.run,
        doubts=() if doubt is None else (doubt,),
        phases=(),
        memory=use,
        telemetry=watch.telemetry(case.n_prompts),
        compile=None,
        n_parameters=found.n_parameters,
        loss=None,
        speculated=found.speculated,
    )


def _score(case: QualityCase, bench: Bench) -> Measured:
    """Builds the case and makes its steps once, as many as it has."""
    watch = bench.site.watch(case.device)
    bench.site.enter(case.device)
    bench.tell(Event(stage="building"))
    with bench.site.limited(case), bench.site.meter(case.device) as meter:
        work = quality.build(case)
        with watch:
            score = work.run(report(bench, "timing", work.n_steps))
        use = meter.use()
    memory.check_fits(use, case.memory_limit_bytes)
    doubt = watch.doubt()
    return Measured(
        run=score.run,
        doubts=() if doubt is None else (doubt,),
        phases=(),
        memory=use,
        telemetry=watch.telemetry(len(score.run.steps_s)),
        compile=None,
        n_parameters=work.n_parameters,
        loss=None,
        quality=score.quality,
    )


def _look(case: NumericsCase, bench: Bench) -> Measured:
    """Looks once, in what counts as one step."""
    watch = bench.site.watch(case.device)
    bench.site.enter(case.device)
    bench.tell(Event(stage="building"))
    with bench.site.limited(case), bench.site.meter(case.device) as meter:
        with watch:
            began = perf_counter()
            if case.subject == "hunt":
                found = story.look(case, probe.environment(case.device))
            else:
                found = numerics.look(case)
            run = Run(warmup_s=(), steps_s=(perf_counter() - began,))
        use = meter.use()
    memory.check_fits(use, case.memory_limit_bytes)
    doubt = watch.doubt()
    return Measured(
        run=run,
        doubts=() if doubt is None else (doubt,),
        phases=(),
        memory=use,
        telemetry=watch.telemetry(1),
        compile=None,
        n_parameters=None,
        loss=None,
        numerics=found,
    )


def _with_held(use: MemoryUse, prepared: Prepared) -> MemoryUse:
    return msgspec.structs.replace(use, held_for_backward_bytes=prepared.held_for_backward_bytes())


def doubts(timing: Timing, watch: Monitor) -> tuple[str, ...]:
    """The reasons to doubt the times that the times themselves do not show."""
    return tuple(each for each in (timing.unsteady, watch.doubt()) if each is not None)


def time_turns(request: TurnsRequest, bench: Bench) -> TurnsTimed:
    """Times the cases in turn, with one in memory at a time.

    Raises:
        As `measure`; the last event says which case it was.
    """
    turns: list[Turn] = []
    for i, case in enumerate(request.cases):
        turns.append(_turn(case, request.protocol, i, bench))
        bench.site.leave(case.device)
    return TurnsTimed(turns=tuple(turns))


def _turn(case: LeverCase, protocol: Protocol, i: int, bench: Bench) -> Turn:
    clock, watch = bench.site.clock(case.device), bench.site.watch(case.device)
    with built(case, bench, i) as (prepared, meter):
        timing = time_steps(
            prepared.step,
            _beyond_the_queue(protocol, prepared),
            clock,
            watch=watch,
            on_warmup=report(bench, "warming up", protocol.warmup_steps, i),
            on_timed=report(bench, "timing", protocol.max_steps, i),
        )
        checked_loss(prepared.loss(), timing)
        use = meter.use()
        # Where workers make batches at once, steps come in bursts: their rate is of the mean.
        is_fed = isinstance(prepared, GivenStep) and prepared.is_fed
    memory.check_fits(use, case.memory_limit_bytes)
    sensed = watch.telemetry(len(timing.run.steps_s))
    return Turn(
        median_s=fmean(timing.run.steps_s) if is_fed else median(timing.run.steps_s),
        peak_bytes=use.peak_allocated_bytes,
        doubts=doubts(timing, watch),
        energy_j=None if sensed is None else sensed.energy_per_step_j,
    )


def _beyond_the_queue(protocol: Protocol, prepared: Prepared) -> Protocol:
    """The protocol with steps enough to use up the batches that a loader made ahead, for as long as a first
    step was compiled, and to see as many more."""
    least = 2 * prepared.n_ahead if isinstance(prepared, GivenStep) else 0
    if not least:
        return protocol
    return msgspec.structs.replace(
        protocol,
        warmup_steps=max(protocol.warmup_steps or 0, least),
        min_steps=max(protocol.min_steps, least),
        max_steps=max(protocol.max_steps, least),
    )


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
    case: Case, bench: Bench, turn: int | None = None
) -> Iterator[tuple[Prepared, memory.Meter]]:
    """The case on its device, under its memory limit, for as long as the block lasts."""
    bench.site.enter(case.device)
    bench.tell(Event(stage="building", turn=turn))
    with (
        bench.site.limited(case),
        bench.site.meter(case.device) as meter,
        bench.prepare(case) as prepared,
    ):
        yield prepared, meter


def report(bench: Bench, stage: Stage, total: int | None, turn: int | None = None) -> Report:
    """A function that tells the parent how many steps of a stage were issued."""
    return lambda n: bench.tell(Event(stage=stage, done=n, total=total, turn=turn))


def _compiles(case: Case) -> bool:
    match case:
        case ModelCase() | ModuleCase() | StepCase():
            return case.configuration.compile != "none"
        case OperatorCase():
            return case.compile != "none"
        case MicroCase():
            return case.piece == COMPILED
        case _:
            return False
