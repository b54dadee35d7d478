"""The main job: measure, predict, profile, pull levers, verify, keep or reject, write it up.

What is asked is an `investigation`, its stages are a `pipeline`; the study that reports show is written here.
"""

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from peakward.prediction.planning.changes import relief
from peakward.prediction.planning.site import Site
from peakward.records.case import LeverCase, ModelCase, ModuleCase, StepCase
from peakward.records.measurement import Measurement
from peakward.records.memory import CaseMemory
from peakward.records.plan import Forecast
from peakward.records.prediction import Prediction
from peakward.records.study import Study
from peakward.tune import guesses, larger_batches
from peakward.tune.costs import HEADLINE
from peakward.tune.diagnoses import diagnosed
from peakward.tune.forecasts import Forecasts, calibrated, floor_of, launch_costs
from peakward.tune.investigation import Investigation
from peakward.tune.ledger import Budget, Ledger, Listener
from peakward.tune.lever_stack import LeverStack
from peakward.tune.pipeline import Pipeline

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

OnPrediction = Callable[[Prediction | None, Forecast | None, tuple[str, ...]], None]


def investigate(
    asked: Investigation,
    sweep: "Sweep",
    store: "Store",
    *,
    on_stage: Listener,
    on_prediction: OnPrediction,
    budget: Budget | None = None,
) -> Study:
    """Carry out the whole loop and store what it found.

    `on_prediction` hears the baseline's floor and forecast before the baseline is measured, and the levers
    that each make it fit where it is predicted not to. Interrupted by Ctrl-C, what was found so far is
    stored as an incomplete study, and the same command goes on from the measurements and trials that
    the store holds. `budget` is one that began earlier, with the command.

    Raises:
        PeakwardError: the budget ended before the baseline was measured: there is nothing to show.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    budget = Budget(asked.budget_s) if budget is None else budget
    sweep.workers.left_s = budget.left_for_the_baseline_s
    with budget.for_the_baseline():
        on_stage("measuring this machine's ceilings")
        calibration = calibrated(sweep, store, asked.case)
        floor = floor_of(asked.case, sweep.environment, calibration)
        if asked.case.device == "cuda":  # Steps of a CPU are not predicted.
            on_stage("measuring what a call costs this host")
        launches = launch_costs(sweep, asked.case)
        forecasts = Forecasts(sweep.environment, calibration, sweep.workers.capture, launches)
        told = forecasts.of(asked.case)
        on_prediction(floor, told, levers_that_fit(asked.case, told, forecasts.here))
        on_stage("measuring the baseline")
        before_s = sweep.workers.start_s
        baseline = sweep.measure(asked.case, HEADLINE)
        start_s = sweep.workers.start_s
    pipeline = Pipeline(
        asked,
        baseline,
        sweep,
        store,
        forecasts,
        floor_s=None if floor is None else floor.floor_s,
        started_s=0.0 if start_s is None or start_s == before_s else start_s,
        budget=budget,
        on_stage=on_stage,
    )
    pipeline.carry_out()
    study = written_up(pipeline, store, started_at)
    store.add_study(study)
    return study


def levers_that_fit(case: LeverCase, told: Forecast | None, here: Site | None) -> tuple[str, ...]:
    """Names the levers that each make fit a case that is predicted not to fit this machine."""
    if here is None or told is None or not isinstance(case, ModelCase):
        return ()
    return relief(case, told, here)


NO_FLOOR = "Floor and MFU: not computed, for what the maths of a user's module needs is not known."
OF_A_STEP = (
    "Floor, MFU and a prediction: not computed, for a step given as a function does not say what its maths "
    "is. Levers were set around its call and in what was given with it; what each of the others needs stands "
    "beside it."
)
NOT_GROWN = "Larger batches of a user's module were not tried: whether they fit is not predicted."


def written_up(pipeline: Pipeline, store: "Store", started_at: str) -> Study:
    """The record of the whole; the store gives what was recorded of its cases' memory before."""
    asked, ledger = pipeline.asked, pipeline.ledger
    measured, best = pipeline.measured, pipeline.held.top
    cases = [each.case for each in measured if isinstance(each.case, LeverCase)]
    environment, forecasts = measured[0].environment, pipeline.forecasts
    floors = (floor_of(case, environment, forecasts.calibration) for case in cases)
    told = tuple(found for case in cases if (found := forecasts.of(case)) is not None)
    recorded = _recorded(measured, store)
    written = Study(
        id=uuid.uuid4().hex,
        name="run",
        title=_title(best),
        command=asked.command,
        environment=environment,
        started_at=started_at,
        wall_s=pipeline.budget.spent_s(),
        complete=not (pipeline.stopped or ledger.skipped),
        measurements=tuple(measured),
        calibration=forecasts.calibration,
        predictions=tuple(each for each in floors if each is not None),
        forecasts=told,
        trials=ledger.trials,
        profiles=pipeline.explained.made,
        memory=recorded,
        diagnoses=diagnosed(
            measured,
            profiles=pipeline.explained.made,
            memory=recorded,
            forecasts=forecasts,
        ),
        best_command=asked.to_command(best),
        real_model=asked.real_model,
        steps=_steps(pipeline.held, ledger),
        called=asked.called,
        unfinished=ledger.unfinished(),
        interrupted=pipeline.stopped
        or pipeline.explained.interrupted
        or any(trial.interrupted for trial in ledger.trials),
        notes=_notes(pipeline),
    )
    written = guesses.entered(written, pipeline.guessed)
    return larger_batches.entered(
        written, pipeline.larger, asked.to_command, asked.aim.max_memory_bytes
    )


def _title(case: LeverCase) -> str:
    if isinstance(case, StepCase):
        return f"{case.name}, a step given as a function"
    work = case.workload
    return f"{case.name}, {work.pass_} at {work.batch_size} × {work.seq_len}"


def _recorded(measured: Sequence[Measurement], store: "Store") -> tuple[CaseMemory, ...]:
    """Returns what an earlier `study memory` of this machine recorded of these cases."""
    return tuple(
        found
        for each in measured
        if isinstance(each.case, ModelCase)
        and (found := store.memory(each.case, each.environment.key)) is not None
    )


def _steps(held: LeverStack, ledger: Ledger) -> tuple[str, ...]:
    """The ids of its steps' trials."""
    made = (ledger.known(lever.name, below) for lever, below, _ in held.steps)
    return tuple(trial.id for trial in made if trial is not None)


def _notes(pipeline: Pipeline) -> tuple[str, ...]:
    """Returns the notes: what was sought, what was not done or not computed, and why."""
    asked, last = pipeline.asked, pipeline.measured[-1]
    undone = "; ".join(pipeline.ledger.skipped)
    peak_bytes = None if last.memory is None else last.memory.peak_allocated_bytes
    return (
        *asked.given,
        *asked.aim.notes(),
        *([f"Not done in its {asked.budget_s:.0f} s: {undone}."] if undone else ()),
        *_unknown(pipeline.held, pipeline.forecasts),
        *pipeline.explained.notes,
        *asked.aim.missed(peak_bytes),
        *_not_grown(asked),
    )


def _unknown(held: LeverStack, forecasts: Forecasts) -> list[str]:
    """Returns what is not computed of the user's own code, and why."""
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


def _not_grown(asked: Investigation) -> tuple[str, ...]:
    """Where larger batches would have been tried of a decoder."""
    if asked.aim.objective != "throughput" or isinstance(asked.case, ModelCase):
        return ()
    return (NOT_GROWN,)
