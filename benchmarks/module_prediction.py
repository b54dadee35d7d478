"""How well steps of models are predicted that prediction was not made from: a grid over transformers.

    python benchmarks/module_prediction.py --device h200-141 --budget-s 440 --out module_prediction.json
    python benchmarks/module_prediction.py --trial --out trial.json          # two cores, no GPU, a minute
    python benchmarks/module_prediction.py --again module_prediction.json --out again.json   # no GPU

Each case is captured on the meta device and predicted, by the device's datasheet and by a calibration that
is made here; then it is measured in plain torch: the median step, the peak, and whether it runs under limits
a little below and above the bytes that were predicted. The file is written after every case. Cases that no
prediction covers are measured too, and their reason is kept. `--again` predicts stored cases anew, after a
change, and its file says so.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

import msgspec
import torch

import peakward as pw
from module_grid.cases import GridCase, grid
from module_grid.measured import measured, release, warm
from module_grid.predicted import Captured, captured, told
from module_grid.summary import Outcome, lines
from peakward.lab.measure import probe
from peakward.records.calibration import Calibration
from peakward.records.measurement import Environment

TURN_S = 0.4
"""Of timed steps a case."""
SPARE_CORES = 2
PREPARED_S = 170.0
"""After which what is not captured or compiled is left out."""
AT_ONCE = 14
"""Processes: each that compiles needs a context and a model on the GPU."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The grid as far as it came."""

    environment: Environment
    device: str
    calibration: Calibration | None
    predicted_before: bool
    """Whether each prediction was made before its case was measured."""
    outcomes: tuple[Outcome, ...] = ()
    summary: tuple[str, ...] = ()


def main() -> None:
    """Predict and measure, or predict again; print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--device", default="h200-141", help="a catalogued key")
    parser.add_argument("--budget-s", type=float, default=440.0, help="for everything")
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--trial", action="store_true", help="tiny models, on the CPU")
    parser.add_argument("--again", type=Path, help="a file of this script, whose cases to predict")
    options = parser.parse_args()
    stored = options.again is not None
    report = predicted_again(options.again, options.only) if stored else measure(options)
    written(report, options.out)
    print("\n".join(report.summary), file=sys.stderr)


def measure(options: argparse.Namespace) -> Report:
    """The grid within the budget."""
    started = monotonic()
    where = "cpu" if options.trial else "cuda"
    cases = [each for each in grid(tiny=options.trial) if options.only in each.name]
    # One core a process: there are more processes than the compiler's own would leave room for.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    with ahead(cases, where) as pending:
        calibration = None
        if not options.trial:
            # They share the host's cores and the GPU: none is to run beside a timed step.
            wait(pending, timeout=PREPARED_S)
            for each in pending:
                each.cancel()
            print(f"prepared after {monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            calibration = pw.calibrate("cuda", db=f"{options.out}.db")
        report = Report(
            environment=probe.environment(where),
            device=options.device,
            calibration=calibration,
            predicted_before=True,
        )
        print(f"ready after {monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        for case, future in zip(cases, pending, strict=True):
            if monotonic() - started > options.budget_s:
                break
            if future.cancelled():
                continue
            outcome = outcome_of(case, future, report, where)
            print(_line(outcome), file=sys.stderr, flush=True)
            outcomes = (*report.outcomes, outcome)
            report = msgspec.structs.replace(
                report, outcomes=outcomes, summary=tuple(lines(outcomes))
            )
            written(report, options.out)
        return report


@contextmanager
def ahead(cases: Sequence[GridCase], where: str) -> Iterator[list[Future[Captured]]]:
    """Captures in processes beside this one; on a GPU these also fill the compiler's cache."""
    n_cores = max(1, len(os.sched_getaffinity(0)) - SPARE_CORES)
    n_at_once = min(n_cores, AT_ONCE)
    with ProcessPoolExecutor(n_at_once, mp_context=get_context("spawn")) as pool:
        try:
            yield [pool.submit(prepared, each, where) for each in cases]
        finally:
            pool.shutdown(cancel_futures=True)


def prepared(case: GridCase, where: str) -> Captured:
    """The case's capture, and its kernels compiled."""
    torch.set_num_threads(1)
    found = captured(case)
    if where == "cuda" and case.compiled != "none":
        with suppress(Exception):  # The measurement says what fails.
            warm(case, where)
        release()
    return found


def outcome_of(case: GridCase, future: Future[Captured], report: Report, where: str) -> Outcome:
    """Predicted, then measured."""
    try:
        found = future.result()
    except Exception as error:  # noqa: BLE001  a model may fail in any way
        found = Captured(capture=None, refused=_said(error), limits=())
    calibrations = (None,) if report.calibration is None else (None, report.calibration)
    before = tuple(told(found, report.device, calibrations))
    try:
        seen, failed = measured(case, where, found.limits, TURN_S), None
    except Exception as error:  # noqa: BLE001  as above
        seen, failed = None, _said(error)
        release()
    return Outcome(case=case, told=before, refused=found.refused, measured=seen, failed=failed)


def predicted_again(path: Path, only: str) -> Report:
    """The stored cases by today's prediction."""
    report = msgspec.json.decode(path.read_bytes(), type=Report)
    calibrations = (None,) if report.calibration is None else (None, report.calibration)
    outcomes = []
    for each in report.outcomes:
        if only not in each.case.name:
            continue
        found = captured(each.case)
        limits = () if each.measured is None else tuple(each.measured.fits)
        found = msgspec.structs.replace(found, limits=limits)
        again = tuple(told(found, report.device, calibrations))
        outcomes.append(msgspec.structs.replace(each, told=again, refused=found.refused))
        print(_line(outcomes[-1]), file=sys.stderr, flush=True)
    return msgspec.structs.replace(
        report,
        outcomes=tuple(outcomes),
        predicted_before=False,
        summary=tuple(lines(outcomes)),
    )


def written(report: Report, path: Path) -> None:
    """Whole or not at all."""
    beside = path.with_suffix(".part")
    beside.write_bytes(msgspec.json.encode(report) + b"\n")
    beside.replace(path)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _line(outcome: Outcome) -> str:
    seen = outcome.measured
    if seen is None:
        return f"{outcome.case.name}: {outcome.failed}"
    figures = [f"{seen.step_s * 1e3:.2f} ms"]
    figures += [f"{each.source} {each.step_s / seen.step_s - 1:+.0%}" for each in outcome.told]
    if seen.peak_bytes and outcome.told:
        figures.append(f"peak {outcome.told[0].peak_bytes / seen.peak_bytes - 1:+.1%}")
    if not outcome.told:
        figures.append(f"not predicted: {(outcome.refused or '')[:90]}")
    return f"{outcome.case.name}: " + ", ".join(figures)


if __name__ == "__main__":
    main()
