"""Writes a trace of some steps of a case under torch's profiler. Never used for timing."""

import gzip
import shutil
from pathlib import Path
from statistics import median

from torch.profiler import ProfilerActivity
from torch.profiler import profile as Profiler

from peakward.lab.levers.ranges import opened_phases
from peakward.lab.measure import failure
from peakward.lab.measure.clock import Clock
from peakward.lab.measure.jobs import Bench, Prepared, built, report
from peakward.lab.measure.messages import Event, Profiled, ProfileRequest
from peakward.lab.measure.timer import collector_paused, run_steps
from peakward.records.case import LeverCase, OperatorCase, StepCase

WARMUP_STEPS = 4
"""The warm-up steps for each length of batch. torch's `reduce-overhead` first runs a graph, then
records it, and replays it from the third step on; lengths that vary are compiled for twice."""
GZIP_LEVEL = 6
"""The level of gzip. Python's own, 9, takes 2.7 times as long for 12% less (22 MB of trace)."""


def profile(request: ProfileRequest, bench: Bench) -> Profiled:
    """Warms the case up, runs its steps in the ranges of `levers.ranges`, and writes the trace.

    The file is complete once this returns, and does not exist before.

    Raises:
        PeakwardError: The case cannot be built here.
    """
    case = request.case
    clock = bench.site.clock(case.device)
    n_warmup = WARMUP_STEPS * _n_lengths(case)
    profiler = Profiler(
        activities=_activities(case), record_shapes=True, with_stack=request.with_stack
    )
    with built(case, bench) as (prepared, _):
        told = report(bench, "warming up", n_warmup)
        told(0)
        run_steps(prepared.step, clock, max_steps=n_warmup, done=lambda _: False, report=told)
        bench.tell(Event(stage="profiling", total=request.n_steps))
        steps_s = _profile(prepared, profiler, clock, request.n_steps)
    # The profiler may hold many events on the host, so they are written outside of the case's memory limit.
    write(profiler, Path(request.path))
    return Profiled(path=request.path, n_steps=request.n_steps, profiled_step_s=median(steps_s))


def _profile(
    prepared: Prepared, profiler: Profiler, clock: Clock, n_steps: int
) -> tuple[float, ...]:
    """The seconds that each step took under the profiler.

    The first step after the profiler has attached itself to the driver is slow, and is left out of the
    trace.
    """
    clock.reserve(n_steps + 1)
    with prepared.ranged(), collector_paused():
        profiler.prepare_trace()
        _step(prepared)
        clock.mark(0)
        clock.wait(0)
        profiler.start_trace()
        try:
            _rehearse(prepared, clock)
            clock.mark(0)
            for i in range(1, n_steps + 1):
                _step(prepared)
                clock.mark(i)
            clock.wait(n_steps)
        finally:
            profiler.stop_trace()
    return tuple(clock.between_s(i, i + 1) for i in range(n_steps))


def _step(prepared: Prepared) -> None:
    with opened_phases("step") as mark:
        prepared.step(mark)


def _rehearse(prepared: Prepared, clock: Clock) -> None:
    """Runs one step outside of a captured graph, so that the trace says the purpose of each piece of
    the graph's work.

    The step needs its own memory beside the graph's. Where that runs out, the trace has only the work
    launched until then.
    """
    if prepared.uncaptured is None:
        return
    try:
        with opened_phases("rehearsal") as mark:
            prepared.uncaptured(mark)
            mark(None)
            clock.mark(0)
            clock.wait(0)
    except RuntimeError as error:
        if failure.of_exception(error).status != "oom":
            raise


def write(profiler: Profiler, path: Path) -> None:
    """Writes the trace and compresses it here: torch, if killed, would leave its plain file in the
    system's scratch folder."""
    plain = path.with_name(f"{path.name}.json")
    profiler.export_chrome_trace(str(plain))
    with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=GZIP_LEVEL) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    plain.unlink()


def _activities(case: LeverCase | OperatorCase) -> list[ProfilerActivity]:
    cuda = [ProfilerActivity.CUDA] if case.device == "cuda" else []
    return [ProfilerActivity.CPU, *cuda]


def _n_lengths(case: LeverCase | OperatorCase) -> int:
    if isinstance(case, OperatorCase | StepCase):
        return 1
    return max(1, len(set(case.workload.varying_seq_lens)))
