"""Find what makes a model faster here: baseline, levers, verdicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import tyro

from peakward.cli import machine, options, output, session, values, watch
from peakward.cli.machine import Machine
from peakward.cli.reproduce import to_command
from peakward.cli.vocabulary import CaseOptions, Cases, ResultOptions, Results, option
from peakward.levers.catalogue import LEVERS
from peakward.records.case import ConfiguredCase, DeviceType, LeverCase
from peakward.records.dry_run import DryRun, PlannedStep
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever, NumericsClass
from peakward.records.plan import Forecast
from peakward.records.prediction import Prediction
from peakward.records.trial import Objective
from peakward.report import dry_run
from peakward.report.format import format_cell, format_spread
from peakward.tune.aim import Aim
from peakward.tune.budget import Budget
from peakward.tune.dry_run import planned
from peakward.tune.investigation import Investigation
from peakward.tune.run import investigate

DEFAULT_BUDGET: dict[DeviceType, str] = {"cpu": "100s", "cuda": "15m"}
"""On a CPU the whole command then ends within two minutes on two cores."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Find what makes a model faster here: baseline, levers, verdicts.

    Measures this machine's ceilings and the baseline, tries the levers one by one and then on top
    of one another, confirms in pairs what gained, and says which gains were confirmed, what was rejected
    and which command reproduces the best composition. Interrupted, the same command resumes.
    """

    baseline: Annotated[str | None, option("SETTING,…", "fp32, naive attention, eager")] = None
    """Your own configuration as the start: levers and field=value settings, such as
    bf16-mixed,sdpa,compile_scope=model."""
    lever: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        option("NAME,…", "all that apply here; repeatable"),
    ] = ()
    """Try these levers alone."""
    budget: Annotated[
        str | None,
        tyro.conf.arg(metavar="TIME", help_behavior_hint="(default: 15m; on a CPU 100s)"),
    ] = None
    """How long it may take, as 90s, 5m or 1h: what has not ended then is ended, and the report says what
    was left and how to go on. The baseline is measured however little it is, in up to a minute."""
    objective: Annotated[str, option("NAME", "latency")] = "latency"
    """What to seek: latency (the shortest step), throughput (the same levers, then larger batches),
    memory (the least peak), or energy (the least joules of a step, on a GPU)."""
    max_memory: Annotated[str | None, option("GIB", "none")] = None
    """Keep nothing whose peak is above this many GiB; while the start is above it, seek memory. The
    start itself runs all the same, which it does not under --memory-limit."""
    numerics: Annotated[str, option("CLASS", "approximate")] = "approximate"
    """Try no lever that changes the numbers more: exact, reordered or approximate (all levers)."""
    dry_run: bool = False
    """List what would be run and how long it should take; run nothing."""
    case: Cases = CaseOptions()
    """What is run: one value an option. Configuration options change the start."""
    results: Results = ResultOptions()


def main(given: Options, command: str) -> int:
    """Carry out the investigation and show it."""
    here = machine.this_machine(given.case.device)
    asked = _asked(given, here, command)
    targets = output.targets(given.results)
    if given.dry_run:
        plan = _dry_run(asked, here, given.results.db)
        output.show(plan, targets, as_json=given.results.json, document=dry_run.document(plan))
        return 0
    budget = Budget(asked.budget_s)
    with (
        watch.budget("run", asked.budget_s) as watching,
        session.opened(given.results.db, here, watching) as opened,
    ):
        opened.sweep.workers.left_s = budget.left_for_the_baseline_s
        with budget.for_the_baseline():
            machine.expect_sound(asked.case, opened.sweep, asked.budget_s)
        study = investigate(
            asked,
            opened.sweep,
            opened.store,
            on_stage=watching.on_stage,
            on_prediction=lambda floor, forecast, fitting: watching.say(
                expectation(asked.case, floor, forecast, fitting)
            ),
            budget=budget,
        )
    output.show_study(study, targets, as_json=given.results.json)
    if study.interrupted:
        raise KeyboardInterrupt
    return 0


def _asked(given: Options, here: Machine, command: str) -> Investigation:
    """What the options ask for, checked against this machine."""
    start = options.settings([given.baseline], "--baseline") if given.baseline is not None else {}
    case = options.single(given.case, here.device, start)
    machine.runnable((case,), here)
    budget = DEFAULT_BUDGET[here.device] if given.budget is None else given.budget
    sought = aim(given.objective, given.max_memory, given.numerics, here)
    return Investigation(
        case=case,
        levers=_levers(given.lever, case, here, sought),
        budget_s=values.duration_s(budget, "--budget"),
        command=command,
        obstacle=lambda lever, base: machine.lever_obstacle(lever, base, here),
        to_command=lambda best: to_command(best, given.case.model),
        aim=sought,
    )


def seconds_of(budget_s: float | None, device: DeviceType) -> float:
    """How long a run from Python may take: what --budget allows, and by default as long.

    Raises:
        PeakwardError: less than a second, more than a week, or no number.
    """
    if budget_s is None:
        return values.duration_s(DEFAULT_BUDGET[device], "budget_s")
    if not 1.0 <= budget_s <= values.MAX_BUDGET_S:
        raise PeakwardError(
            f"expected budget_s from 1 to {values.MAX_BUDGET_S:,.0f}, got {budget_s!r}: it is in seconds"
        )
    return budget_s


def aim(objective: str, max_memory: str | None, numerics: str, here: Machine) -> Aim:
    """What to seek, from its options.

    Raises:
        PeakwardError: a value that is not one, or energy on a device that does not count it.
    """
    wanted = values.one_of(objective, get_args(Objective), "an objective")
    if wanted == "energy" and here.device == "cpu":
        raise PeakwardError(
            "expected a GPU, whose driver counts energy, for --objective energy, got a CPU: "
            "seek latency, or run it on a GPU"
        )
    limit = None if max_memory is None else values.memory_bytes(max_memory, "--max-memory")
    kind = values.one_of(numerics, get_args(NumericsClass), "a numerics class")
    return Aim(objective=wanted, max_memory_bytes=limit, numerics=kind)  # type: ignore[arg-type]


def _levers(
    names: tuple[str, ...], case: ConfiguredCase, here: Machine, sought: Aim
) -> tuple[Lever, ...]:
    return allowed(options.levers(names), case, here, sought) if names else LEVERS


def allowed(
    levers: tuple[Lever, ...], case: ConfiguredCase, here: Machine, sought: Aim
) -> tuple[Lever, ...]:
    """The levers, each asked for by name: all must be able to apply, and be within what is sought.

    Raises:
        PeakwardError: one that is not; an explicit request is never skipped.
    """
    for lever in levers:
        reason = sought.obstacle(lever, case)
        if reason is not None:
            raise PeakwardError(f"expected levers within what is sought: {lever.name} {reason}")
    return machine.applicable(levers, case, here)


def _dry_run(asked: Investigation, here: Machine, db: str) -> DryRun:
    from peakward.store.database import Store

    calibration = None
    if Path(db).exists():
        with Store.open_read_only(Path(db)) as store:
            calibration = store.calibration(here.environment.key)
    return DryRun(
        command=asked.command,
        steps=tuple(
            PlannedStep(what=what, predicted_s=cost_s)
            for what, cost_s in planned(asked, here.environment, calibration)
        ),
        budget_s=asked.budget_s,
    )


def expectation(
    case: LeverCase,
    floor: Prediction | None,
    forecast: Forecast | None,
    fitting: Sequence[str],
) -> str:
    """What the machine allows and what is predicted, said before anything is measured; `fitting` are the
    levers each of which makes fit what does not."""
    said = [_ceiling(case, floor)]
    if forecast is not None and forecast.step_s is not None:
        said.append(f"predicted {format_spread(forecast.step_s, 's')}")
    if forecast is not None and forecast.needed_bytes is not None:
        said.append(_memory(forecast, forecast.needed_bytes, fitting))
    return "; ".join(said)


def _memory(forecast: Forecast, needed_bytes: int, fitting: Sequence[str]) -> str:
    needed = f"{format_cell(needed_bytes, 'bytes')} of memory"
    if forecast.fits is not False:
        return needed
    there_is = f"{needed}, which does not fit {format_cell(forecast.limit_bytes, 'bytes')}"
    return f"{there_is}, but would with {' or '.join(fitting)}" if fitting else there_is


def _ceiling(case: LeverCase, prediction: Prediction | None) -> str:
    """What the machine allows, said before anything is measured."""
    if prediction is None:
        return "no floor: what the maths of a module needs is not known"
    if prediction.floor_s is None:
        return f"no floor: the {prediction.compute_type} matmul rate of this machine is unknown"
    assert case.tokens_per_step is not None
    tokens_per_s = case.tokens_per_step / prediction.floor_s
    return (
        f"at most {format_cell(tokens_per_s, 'tokens_per_s')}: "
        f"a step's floor here is {format_cell(prediction.floor_s, 's')}"
    )
