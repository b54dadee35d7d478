"""Measure a grid of cases."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import tyro

from peakward.api.cases import MAX_STEPS
from peakward.api.machine import Machine, runnable, this_machine
from peakward.api.measuring import grid
from peakward.cli import options, output, parse, watch
from peakward.cli.vocabulary import CaseOptions, Cases, ResultOptions, Results, option
from peakward.records import check
from peakward.records.case import Case
from peakward.records.errors import PeakwardError, quoted
from peakward.records.measurement import Environment, Protocol
from peakward.records.plan import DryRun, PlannedStep
from peakward.report import dry_run
from peakward.report.cases import label
from peakward.studies.bench import planned
from peakward.studies.readings import Planned

if TYPE_CHECKING:
    from peakward.api.cluster import ExecutorName, Jobs


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Measure a grid of cases.

    Every comma list is an axis of the grid. A case that runs out of memory, times out or crashes
    keeps its row. What the database holds is not measured again, so the same command resumes;
    measure anew into another `--db`.
    """

    case: Cases = CaseOptions()
    """The cases to run: every combination of the lists."""
    lever: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], option("NAME,…", "none")] = ()
    """Levers pulled in every case: a short way to set options of the case."""
    warmup: Annotated[str, option("N,…", "until steady")] = "until-steady"
    """Untimed steps first; until-steady: as many as a test of the step times asks for."""
    steps: Annotated[str | None, option("N", "10 to 200, until the interval is narrow")] = None
    """Timed steps."""
    timeout: Annotated[str | None, option("TIME", "10m")] = None
    """Longest time for one case, building and compiling included, as 90s or 5m."""
    executor: Annotated[str, option("NAME", "here")] = "here"
    """Who measures: here (this process's workers); slurm (a job of Slurm for each case); local (the same
    jobs as processes of this machine, one at a time). Jobs need submitit."""
    sbatch: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], option("NAME=VALUE", "none")] = ()
    """An option of sbatch for every job, as partition=gpu or gres=gpu:1; may be repeated."""
    dry_run: bool = False
    """List the cases, and which the database holds already; run nothing."""
    results: Results = ResultOptions()


def main(given: Options, command: str) -> int:
    """Measure the grid and show it."""
    executor = _executor(given)
    if executor is None:
        return _measured(given, command, this_machine(given.case.device), None)
    if given.dry_run:
        raise PeakwardError(
            "expected --dry-run without --executor, which runs a job: leave one out"
        )
    from peakward.api import cluster

    db = Path(given.results.db)
    options_of_jobs = _sbatch(given.sbatch)
    with cluster.Jobs(executor, db.with_name(f"{db.name}.jobs"), options_of_jobs) as jobs:
        with watch.cases("bench", (), total=1) as watching:
            there = cluster.machine(jobs, given.case.device, watching)
        return _measured(given, command, there, jobs)


def _measured(given: Options, command: str, here: Machine, jobs: "Jobs | None") -> int:
    start = options.settings(given.lever, "--lever")
    asked = options.without_twins(options.cases(given.case, here.device, start=start))
    cases, reasons = runnable(asked, here)
    protocols = _protocols(given)
    targets = output.targets(given.results)
    plan = planned(cases, protocols)
    if given.dry_run:
        shown = _dry_run(plan, here.environment, Path(given.results.db), command, reasons)
        output.show(shown, targets, as_json=given.results.json, document=dry_run.document(shown))
        return 0
    names = [label(case) for case, _ in plan]
    with watch.cases("bench", names) as watching:
        study = grid(
            cases,
            protocols,
            here,
            Path(given.results.db),
            command=command,
            notes=tuple(map(_left_out, reasons)),
            observer=watching,
            jobs=jobs,
        )
    output.show_study(study, targets, as_json=given.results.json)
    if not study.complete:
        raise KeyboardInterrupt
    return 0


def _executor(given: Options) -> "ExecutorName | None":
    if given.executor == "here":
        if given.sbatch:
            raise PeakwardError("expected --sbatch with --executor slurm, got it without: add that")
        return None
    names: tuple[ExecutorName, ...] = ("local", "slurm")
    check.one_of(given.executor, ("here", *names), "a value of --executor")
    return next(each for each in names if each == given.executor)


def _sbatch(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, _, value = check.line(each, "--sbatch").partition("=")
        name = name.removeprefix("--")
        if not re.fullmatch(r"[a-z][a-z-]{0,40}", name) or not value:
            raise PeakwardError(
                f"expected an option of sbatch as NAME=VALUE for --sbatch, got {quoted(each)}: "
                "for example partition=gpu or gres=gpu:1"
            )
        found[name] = value
    return found


def _left_out(reason: str) -> str:
    return f"Left out where it cannot apply: {reason}."


def _protocols(given: Options) -> tuple[Protocol, ...]:
    fields: dict[str, int | float] = {}
    if given.steps is not None:
        steps = parse.whole(given.steps, "--steps", low=1, high=MAX_STEPS)
        fields |= {"min_steps": steps, "max_steps": steps}
    if given.timeout is not None:
        fields["timeout_s"] = check.duration_s(given.timeout, "--timeout")
    return tuple(
        msgspec.structs.replace(Protocol(), warmup_steps=_warmup(text), **fields)
        for text in parse.split(given.warmup, "--warmup")
    )


def _warmup(text: str) -> int | None:
    if text == "until-steady":
        return None
    return parse.whole(text, "--warmup", low=0, high=MAX_STEPS)


def _dry_run(
    plan: tuple[Planned, ...],
    environment: Environment,
    db: Path,
    command: str,
    reasons: Sequence[str],
) -> DryRun:
    held = _held(plan, environment, db)
    return DryRun(
        command=command,
        steps=tuple(
            PlannedStep(
                what=_named(case, protocol),
                case=case,
                protocol=protocol,
                is_stored=(case, protocol) in held,
            )
            for case, protocol in plan
        ),
        left_out=tuple(map(_left_out, reasons)),
    )


def _named(case: Case, protocol: Protocol) -> str:
    warmup = protocol.warmup_steps
    return f"{label(case)}, {'until steady' if warmup is None else f'{warmup} warm-up steps'}"


def _held(plan: tuple[Planned, ...], environment: Environment, db: Path) -> set[Planned]:
    if not db.exists():
        return set()
    from peakward.store.database import Store

    with Store.open_read_only(db) as store:
        return {
            (case, protocol)
            for case, protocol in plan
            if store.measurement(case, protocol, environment.key) is not None
        }
