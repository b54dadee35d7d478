"""How well steps of models are predicted that prediction was not made from: a grid over transformers.

    python benchmarks/module_prediction.py --grid blind --budget-s 270 --out module_prediction.json
    python benchmarks/module_prediction.py --grid blind --trial --device h200-141 --out trial.json    # no GPU
    python benchmarks/module_prediction.py --grid blind --device h200-141 --foresee --out told.json
    python benchmarks/module_prediction.py --again module_prediction.json --out again.json
    python benchmarks/module_prediction.py --cases module_prediction.json --out measured_again.json

Every case is captured on the meta device, and kernels of compiled ones are made meanwhile; then the device is
calibrated, and all cases are predicted, by the device's datasheet and by that calibration, and written down.
Then one case after another is measured in plain torch: the median step, the peak, and what a call costs the
host just before and after. By that cost the step is told once more ("moment"): a host's speed changes by the
minute, and the difference between both errors is the host's. Of a train step a call is timed in the thread of
the backward pass too, and the step told by both ("by thread"). The file is written after every case.
`--foresee` ends before anything is measured; `--again` predicts stored cases anew, after a change, `--cases`
also measures them anew, and their files say so.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from multiprocessing import TimeoutError as NotInTime
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult
from pathlib import Path
from time import monotonic
from types import FrameType

import msgspec
import torch

from module_grid import blind, seven
from module_grid.cases import GridCase
from module_grid.measured import measured, release, warm
from module_grid.predicted import Captured, captured, told, told_of_the_moment
from module_grid.summary import Outcome, lines
from peakward.hardware import devices
from peakward.lab.measure import probe
from peakward.lab.measure.calibration.full import calibrate_in_full
from peakward.lab.measure.isolated import Workers
from peakward.records.calibration import Calibration, Rates, Subject
from peakward.records.measurement import Environment

GRIDS: dict[str, Callable[..., list[GridCase]]] = {"seven": seven.grid, "blind": blind.grid}
TURN_S = 0.4
"""Of timed steps a case."""
SPARE_CORES = 2
PREPARED_SHARE = 0.4
"""Of the budget, after which what is not captured or compiled is left."""
AT_ONCE = 14
"""Processes: each that compiles needs a context and a model on the GPU."""
NEEDED: tuple[Subject, ...] = ("products", "traffic", "launches", "attention")
"""The subjects of a calibration that a step's time is made from."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The grid as far as it came."""

    environment: Environment
    device: str
    calibration: Calibration | None
    predicted_before: bool
    """Whether each prediction was made before its case was ever measured."""
    transformers: str | None = None
    """The version whose models were measured; another may run other operators. None in older files."""
    outcomes: tuple[Outcome, ...] = ()
    summary: tuple[str, ...] = ()


class OutOfTime(BaseException):
    """The budget is over, whatever runs."""


def main() -> None:
    """Predict and measure, or predict again; print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--grid", choices=list(GRIDS), default="blind")
    parser.add_argument("--device", help="a catalogued key; this machine's GPU without")
    parser.add_argument("--budget-s", type=float, default=440.0, help="for all but imports")
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--limits", action="store_true", help="run within predicted bytes too")
    parser.add_argument("--trial", action="store_true", help="tiny models, on the CPU")
    parser.add_argument("--foresee", action="store_true", help="predict, and measure nothing")
    parser.add_argument("--again", type=Path, help="a file of this script, whose cases to predict")
    parser.add_argument(
        "--cases", type=Path, nargs="+", help="files of this script, whose cases to measure"
    )
    options = parser.parse_args()
    stored = options.again is not None
    report = predicted_again(options.again, options.only) if stored else measure(options)
    written(report, options.out)
    print("\n".join(report.summary), file=sys.stderr)


def measure(options: argparse.Namespace) -> Report:
    """The grid within the budget: all predictions, then the measurements."""
    started = monotonic()
    where = "cpu" if options.trial or options.foresee else "cuda"
    grid = GRIDS[options.grid](tiny=options.trial) if options.cases is None else of(options.cases)
    cases = [each for each in grid if options.only in each.name]
    # One core a process: there are more processes than the compiler's own would leave room for.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    share = 1.0 if options.foresee else PREPARED_SHARE
    ends_s = started + share * options.budget_s
    environment, calibration = probe.environment(where), None
    with Workers() as workers:
        if where == "cuda":
            workers.prepare(1)  # It imports torch meanwhile.
        seen = prepared(cases, where, ends_s, with_limits=options.limits)
        _say(started, "prepared")
        if where == "cuda":
            calibration = calibrate_in_full(workers, "cuda", subjects=NEEDED)
            _say(started, "calibrated")
    report = Report(
        environment=environment,
        device=options.device or _key(environment),
        calibration=calibration,
        predicted_before=options.cases is None,
        transformers=version("transformers"),
    )
    told_before = [foretold(case, found, report) for case, found in seen]
    report = with_outcomes(report, told_before)
    written(report, options.out)
    _say(started, "predicted")
    if options.foresee:
        return report
    with suppress(OutOfTime), until(started + options.budget_s):
        for i, (_case, found) in enumerate(seen):
            outcome = measured_outcome(report.outcomes[i], found, report, where)
            print(_line(outcome), file=sys.stderr, flush=True)
            outcomes = (*report.outcomes[:i], outcome, *report.outcomes[i + 1 :])
            report = with_outcomes(report, outcomes)
            written(report, options.out)
    _say(started, "measured")
    return report


def of(stored: Sequence[Path]) -> list[GridCase]:
    """The cases of files of this script."""
    reports = (msgspec.json.decode(each.read_bytes(), type=Report) for each in stored)
    return [outcome.case for report in reports for outcome in report.outcomes]


def _key(environment: Environment) -> str:
    known = devices.match(environment.device_name, environment.device_memory_bytes)
    if known is None:
        raise SystemExit(f"expected a catalogued GPU, got {environment.device_name}: name --device")
    return known.key


def prepared(
    cases: Sequence[GridCase], where: str, ends_s: float, *, with_limits: bool
) -> list[tuple[GridCase, Captured]]:
    """Captures from processes beside this one, which on a GPU also fill the compiler's cache on disk. Cases
    whose kernels are not made in time come last: they are compiled where they are measured."""
    n_cores = max(1, len(os.sched_getaffinity(0)) - SPARE_CORES)
    compiled = [each for each in cases if where == "cuda" and each.compiled != "none"]
    with get_context("spawn").Pool(min(n_cores, AT_ONCE), _on_one_core) as pool:
        # Captures take a second or two each, kernels most of the time.
        seeing = [pool.apply_async(seen_as, (each, with_limits)) for each in cases]
        warming = [pool.apply_async(warmed, (each, where)) for each in compiled]
        found = [
            (each, _in_time(result, ends_s)) for each, result in zip(cases, seeing, strict=True)
        ]
        late = {
            each.name
            for each, result in zip(compiled, warming, strict=True)
            if not _ready(result, ends_s)
        }
    return sorted(found, key=lambda each: each[0].name in late)


def _on_one_core() -> None:
    torch.set_num_threads(1)


def _ready(result: "AsyncResult[None]", ends_s: float) -> bool:
    result.wait(max(0.0, ends_s - monotonic()))
    return result.ready()


def _in_time(result: "AsyncResult[Captured]", ends_s: float) -> Captured:
    try:
        return result.get(max(0.0, ends_s - monotonic()))
    except NotInTime:
        return Captured(capture=None, refused="not captured in time", limits=())


def seen_as(case: GridCase, with_limits: bool) -> Captured:
    """The case's capture, or the reason why there is none."""
    try:
        return captured(case, with_limits=with_limits)
    except Exception as error:  # noqa: BLE001  a model may fail in any way
        return Captured(capture=None, refused=_said(error), limits=())


def warmed(case: GridCase, where: str) -> None:
    """Makes the case's kernels; the measurement says what fails."""
    with suppress(Exception):
        warm(case, where)
    release()


def foretold(case: GridCase, found: Captured, report: Report) -> Outcome:
    """The case with its predictions, before it is measured."""
    calibrations = (None,) if report.calibration is None else (None, report.calibration)
    before = tuple(told(found, report.device, calibrations))
    return Outcome(case=case, told=before, refused=found.refused)


def measured_outcome(outcome: Outcome, found: Captured, report: Report, where: str) -> Outcome:
    """The outcome with what was measured, and told once more by the host of that moment."""
    try:
        seen = measured(outcome.case, where, found.limits, TURN_S)
    except Exception as error:  # noqa: BLE001  as above
        release()
        return msgspec.structs.replace(outcome, failed=_said(error))
    now = told_of_the_moment(found, report.device, report.calibration, seen.launches)
    return msgspec.structs.replace(outcome, told=(*outcome.told, *now), measured=seen)


def with_outcomes(report: Report, outcomes: Sequence[Outcome]) -> Report:
    """The report with its summary."""
    return msgspec.structs.replace(report, outcomes=tuple(outcomes), summary=tuple(lines(outcomes)))


@contextmanager
def until(ends_s: float) -> Iterator[None]:
    """Raises OutOfTime in the block when the time is over, also within a step that takes long."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, ends_s - monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def predicted_again(path: Path, only: str) -> Report:
    """The stored cases by today's prediction."""
    report = msgspec.json.decode(path.read_bytes(), type=Report)
    here = version("transformers")
    if report.transformers != here:
        print(
            f"captured by transformers {here}, measured by {report.transformers}", file=sys.stderr
        )
    outcomes = []
    for each in report.outcomes:
        if only not in each.case.name:
            continue
        limits = () if each.measured is None else tuple(each.measured.fits)
        found = msgspec.structs.replace(seen_as(each.case, False), limits=limits)
        again = foretold(each.case, found, report)
        beside = Rates() if each.measured is None else each.measured.launches
        now = told_of_the_moment(found, report.device, report.calibration, beside)
        outcomes.append(
            msgspec.structs.replace(each, told=(*again.told, *now), refused=again.refused)
        )
        print(_line(outcomes[-1]), file=sys.stderr, flush=True)
    return with_outcomes(msgspec.structs.replace(report, predicted_before=False), outcomes)


def written(report: Report, path: Path) -> None:
    """Whole or not at all."""
    beside = path.with_suffix(".part")
    beside.write_bytes(msgspec.json.encode(report) + b"\n")
    beside.replace(path)


def _say(started: float, what: str) -> None:
    print(f"{what} after {monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _line(outcome: Outcome) -> str:
    seen = outcome.measured
    if seen is None:
        return f"{outcome.case.name}: {outcome.failed}"
    figures = [f"{seen.step_s * 1e3:.2f} ms"]
    if seen.calls_s is not None:
        figures += [f"a call {_in_us(seen.calls_s)}"]
    if seen.backward_calls_s is not None:
        figures += [f"in a backward pass {_in_us(seen.backward_calls_s)}"]
    figures += [f"{each.source} {each.step_s / seen.step_s - 1:+.0%}" for each in outcome.told]
    if seen.peak_bytes and outcome.told:
        figures += [f"peak {outcome.told[-1].peak_bytes / seen.peak_bytes - 1:+.1%}"]
    if outcome.refused is not None:
        figures += [outcome.refused]
    return f"{outcome.case.name}: {', '.join(figures)}"


def _in_us(calls_s: Sequence[float]) -> str:
    return f"{' and '.join(f'{1e6 * each:.1f}' for each in calls_s)} us"


if __name__ == "__main__":
    main()
