"""The main job: measure, predict, pull levers, verify, keep or reject."""

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from peakward.catalogue import devices
from peakward.catalogue.levers import changes, pull
from peakward.prediction.floor import floor
from peakward.prediction.planning.relief import relief
from peakward.prediction.planning.site import Site
from peakward.records.calibration import Calibration
from peakward.records.case import LeverCase, ModelCase, ModuleCase, StepCase
from peakward.records.case_memory import CaseMemory
from peakward.records.device import Device
from peakward.records.environment import Environment
from peakward.records.lever import Lever
from peakward.records.measurement import Measurement
from peakward.records.plan import Forecast
from peakward.records.prediction import Prediction
from peakward.records.protocol import Protocol
from peakward.records.study import Study
from peakward.tune import costs, growth, profiles
from peakward.tune.aim import Aim
from peakward.tune.bench import Bench, Obstacle
from peakward.tune.budget import Budget
from peakward.tune.costs import N_PROCESSES
from peakward.tune.diagnoses import diagnosed
from peakward.tune.expectations import Expectations
from peakward.tune.forecasts import Forecasts
from peakward.tune.laboratory import Laboratory
from peakward.tune.ladder import Ladder
from peakward.tune.ledger import Ledger, Listener
from peakward.tune.proof import Proof
from peakward.tune.search import Search
from peakward.tune.trials import interrupted

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

HEADLINE = Protocol(max_timed_s=3.0)
"""Baseline and best: their medians and phases stand in the report's first lines."""


NO_FLOOR = "Floor and MFU: not computed, for what the maths of a user's module needs is not known."
OF_A_STEP = (
    "Floor, MFU and a prediction: not computed, for a step given as a function does not say what its maths "
    "is. Levers were set around its call alone; what each of the others needs stands beside it."
)


class Investigation(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked."""

    case: LeverCase
    """The start: the model, the workload and the user's own configuration or the baseline."""
    levers: tuple[Lever, ...]
    budget_s: float
    command: str
    """Reproduces the investigation."""
    obstacle: Obstacle
    """Why a lever cannot apply to a case on this machine, or None."""
    to_command: Callable[[LeverCase], str | None]
    """The command line that measures a case."""
    aim: Aim = Aim()

    def forbids(self, lever: Lever, base: LeverCase) -> str | None:
        """Why the lever is not to be tried on the base, or None."""
        return self.aim.obstacle(lever, base) or self.obstacle(lever, base)


def calibrated(sweep: "Sweep", store: "Store", case: LeverCase) -> Calibration:
    """This machine's ceilings, measured now where the store has none."""
    known = store.calibration(sweep.environment.key)
    if known is None:
        known = sweep.workers.calibrate(case.device)
        store.add_calibration(known)
    return known


def predicted(
    case: LeverCase, environment: Environment, calibration: Calibration | None
) -> Prediction | None:
    """The case's floor on this machine; None of a user's module, whose maths is not known."""
    if not isinstance(case, ModelCase):
        return None
    return floor(case, calibration=calibration, device=_device(environment))


def _floor_s(ceiling: Prediction | None) -> float | None:
    return None if ceiling is None else ceiling.floor_s


def levers_that_fit(
    case: LeverCase,
    told: Forecast | None,
    here: Site | None,
) -> tuple[str, ...]:
    """Of a case that is predicted not to fit this machine, those that each make it fit."""
    if here is None or told is None or not isinstance(case, ModelCase):
        return ()
    return relief(case, told, here)


def _device(environment: Environment) -> Device | None:
    return devices.match(environment.device_name, environment.device_memory_bytes)


def investigate(
    asked: Investigation,
    sweep: "Sweep",
    store: "Store",
    *,
    on_stage: Listener,
    on_prediction: Callable[[Prediction | None, Forecast | None, tuple[str, ...]], None],
) -> Study:
    """Carry out the whole loop and store what it found.

    `on_prediction` hears the baseline's floor and forecast before the baseline is measured, and the levers
    that each make it fit where it is predicted not to. Interrupted by Ctrl-C, what was found so far is
    stored as an incomplete study, and the same command goes on from the measurements and trials that
    the store holds.
    """
    started, budget = datetime.now(UTC), Budget(asked.budget_s)
    on_stage("measuring this machine's ceilings")
    calibration = calibrated(sweep, store, asked.case)
    ceiling = predicted(asked.case, sweep.environment, calibration)
    forecasts = Forecasts(sweep.environment, calibration, sweep.workers.capture)
    told = forecasts.of(asked.case)
    on_prediction(ceiling, told, levers_that_fit(asked.case, told, forecasts.here))
    on_stage("measuring the baseline")
    measured = [sweep.measure(asked.case, HEADLINE)]
    guess = costs.learned(costs.guessed(asked.case, _floor_s(ceiling)), measured[0])
    # For the best, measured as the baseline was, and the profiles of both in one process.
    reserve_s = measured[0].wall_s + 2 * guess.profile_s(asked.case) - guess.start_s
    ledger = Ledger(budget, reserve_s=min(reserve_s, asked.budget_s / 4), announce=on_stage)
    profiler = profiles.Profiler(sweep.workers, store, sweep.environment.key)
    expected = Expectations(forecasts, profiler.known)
    laboratory = Laboratory(sweep, store, expected, asked.aim)
    bench = Bench(laboratory, ledger, guess, asked.forbids, sweep.environment.key)
    held, stopped = Ladder(base=asked.case), False
    explained, larger = profiles.Profiles(), growth.Growth()
    try:
        runs = measured[0].status == "ok"
        search = Search(bench, seeks_memory=asked.aim.seeks_memory)
        proof = Proof(bench, base_runs=runs)
        held = proof.prove(search.climb(asked.case, asked.levers, base_runs=runs))
        if held.levers:
            measured.append(_best_measured(held, sweep, on_stage))
        explained = profiles.affordable(
            measured,
            profiler,
            budget=budget,
            costs=guess,
            on_stage=on_stage,
        )
        if not explained.interrupted:
            ledger.reserve_s = 0.0
            search.alone(asked.case, asked.levers)
            best_alone = proof.prove_alone(asked.case) if runs else held
            if not held.levers and best_alone.levers:
                held = best_alone
                measured.append(_best_measured(held, sweep, on_stage))
            if asked.aim.objective == "throughput" and isinstance(held.top, ModelCase):
                larger = growth.grown(
                    held.top,
                    bench,
                    sweep,
                    HEADLINE,
                    here=forecasts.here,
                    max_memory_bytes=asked.aim.max_memory_bytes,
                )
    except KeyboardInterrupt:
        stopped = True
    study = _study(asked, held, forecasts, measured, ledger)
    recorded = _recorded(measured, store)
    study = msgspec.structs.replace(
        study,
        started_at=started.isoformat(timespec="seconds"),
        wall_s=budget.spent_s(),
        complete=not (stopped or ledger.skipped),
        interrupted=stopped or explained.interrupted or any(map(interrupted, ledger.trials)),
        profiles=explained.made,
        memory=recorded,
        diagnoses=diagnosed(
            measured,
            profiles=explained.made,
            memory=recorded,
            forecasts=study.forecasts,
            here=forecasts.here,
        ),
        notes=(
            *study.notes,
            *explained.notes,
            *asked.aim.missed(_peak_bytes(measured[-1])),
            *_not_grown(asked),
        ),
    )
    study = growth.entered(study, larger, asked.to_command, asked.aim.max_memory_bytes)
    store.add_study(study)
    return study


def _not_grown(asked: Investigation) -> tuple[str, ...]:
    """What a reader must know where larger batches would have been tried of a decoder."""
    if asked.aim.objective != "throughput" or isinstance(asked.case, ModelCase):
        return ()
    return ("Larger batches of a user's module were not tried: whether they fit is not predicted.",)


def _peak_bytes(measured: Measurement) -> int | None:
    return None if measured.memory is None else measured.memory.peak_allocated_bytes


def _recorded(measured: Sequence[Measurement], store: "Store") -> tuple[CaseMemory, ...]:
    """What an earlier `study memory` of this machine recorded of these cases."""
    return tuple(
        found
        for each in measured
        if isinstance(each.case, ModelCase)
        and (found := store.memory(each.case, each.environment.key)) is not None
    )


def _best_measured(held: Ladder, sweep: "Sweep", on_stage: Listener) -> Measurement:
    """In a process as young as the baseline's: after a dozen cases one measured 12.6 ms where fresh
    ones gave 8 to 9 (host-bound, H200 machine, 2026-11-21)."""
    on_stage("measuring the best composition")
    sweep.workers.close()
    return sweep.measure(held.top, HEADLINE)


def _steps(held: Ladder, ledger: Ledger) -> tuple[str, ...]:
    """The ids of its rungs' trials."""
    made = (ledger.known(lever.name, below) for lever, below, _ in held.rungs)
    return tuple(trial.id for trial in made if trial is not None)


def _study(
    asked: Investigation,
    held: Ladder,
    forecasts: Forecasts,
    measured: Sequence[Measurement],
    ledger: Ledger,
) -> Study:
    environment, best = measured[0].environment, held.top
    calibration = forecasts.calibration
    cases = [each.case for each in measured if isinstance(each.case, LeverCase)]
    undone = "; ".join(dict.fromkeys(ledger.skipped))
    limits = [f"Not done in its {asked.budget_s:.0f} s: {undone}."] if undone else []
    limits += _unknown(held, forecasts)
    return Study(
        id=uuid.uuid4().hex,
        name="run",
        title=_title(best),
        command=asked.command,
        environment=environment,
        started_at="",
        wall_s=0.0,
        complete=False,
        measurements=tuple(measured),
        calibration=calibration,
        predictions=tuple(
            ceiling
            for case in cases
            if (ceiling := predicted(case, environment, calibration)) is not None
        ),
        forecasts=tuple(found for case in cases if (found := forecasts.of(case)) is not None),
        trials=ledger.trials,
        steps=_steps(held, ledger),
        best_command=asked.to_command(best),
        notes=(*asked.aim.notes(), *limits),
    )


def _unknown(held: Ladder, forecasts: Forecasts) -> list[str]:
    """What is not computed of the user's own code, and why."""
    if isinstance(held.top, StepCase):
        return [OF_A_STEP]
    if not isinstance(held.top, ModuleCase):
        return []
    named = {"baseline": held.base} | ({"best": held.top} if held.levers else {})
    return [
        NO_FLOOR,
        *(
            f"Prediction of the {name}: not computed: {why}."
            for name, case in named.items()
            if (why := forecasts.why_none(case)) is not None
        ),
    ]


def _title(case: LeverCase) -> str:
    if isinstance(case, StepCase):
        return f"{case.name}, a step given as a function"
    work = case.workload
    return f"{case.name}, {work.pass_} at {work.batch_size} × {work.seq_len}"


def planned(
    asked: Investigation, environment: Environment, calibration: Calibration | None
) -> list[tuple[str, float]]:
    """For a dry run: what would be done, and how many seconds each should take.

    As if every lever gained on top of those before it; what then gains alone is tried last, with
    what is left of the budget.
    """
    known = calibration is not None or _device(environment) is not None
    floor_s = _floor_s(predicted(asked.case, environment, calibration)) if known else None
    guess = costs.guessed(asked.case, floor_s)
    steps = [] if calibration is not None else [("measure this machine's ceilings", 15.0)]
    baseline_s = guess.start_s + guess.arm_s + HEADLINE.max_timed_s
    steps.append(("measure the baseline", baseline_s))
    applicable = [
        lever
        for lever in asked.levers
        if changes(lever, asked.case) and asked.forbids(lever, asked.case) is None
    ]
    ladder = Ladder(base=asked.case)
    for lever in applicable:
        steps.append((f"screen {lever.name}", guess.screen_s(pull(lever, ladder.top))))
        ladder = ladder.in_place(lever) if lever.saves == "time" else ladder
    turns_s = N_PROCESSES * (guess.start_s + sum(map(guess.turn_s, ladder.cases)))
    steps += [
        ("check the numbers of what gained", sum(map(guess.check_s, ladder.cases[1:]))),
        ("confirm the composition and each of its levers", turns_s),
        ("measure the best composition", baseline_s),
        ("profile the baseline and the best", 2 * guess.profile_s(asked.case)),
    ]
    return steps
