"""The main job: measure, predict, profile, pull levers, verify, keep or reject, write it up.

What is asked is an `investigation`, its stages are a `pipeline`, its record is made by `write_up`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from peakward.prediction.planning.relief import relief
from peakward.prediction.planning.site import Site
from peakward.records.case import LeverCase, ModelCase
from peakward.records.plan import Forecast
from peakward.records.prediction import Prediction
from peakward.records.study import Study
from peakward.tune import write_up
from peakward.tune.budget import Budget
from peakward.tune.costs import HEADLINE
from peakward.tune.forecasts import Forecasts, calibrated, floor_of
from peakward.tune.investigation import Investigation
from peakward.tune.ledger import Listener
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
        forecasts = Forecasts(sweep.environment, calibration, sweep.workers.capture)
        told = forecasts.of(asked.case)
        on_prediction(floor, told, levers_that_fit(asked.case, told, forecasts.here))
        on_stage("measuring the baseline")
        baseline = sweep.measure(asked.case, HEADLINE)
    pipeline = Pipeline(
        asked,
        baseline,
        sweep,
        store,
        forecasts,
        floor_s=None if floor is None else floor.floor_s,
        budget=budget,
        on_stage=on_stage,
    )
    pipeline.carry_out()
    study = write_up.study(pipeline, store, started_at)
    store.add_study(study)
    return study


def levers_that_fit(case: LeverCase, told: Forecast | None, here: Site | None) -> tuple[str, ...]:
    """Names the levers that each make fit a case that is predicted not to fit this machine."""
    if here is None or told is None or not isinstance(case, ModelCase):
        return ()
    return relief(case, told, here)
