"""What the rules say of the cases that an investigation measured."""

from collections.abc import Sequence

from peakward.diagnose.examine import examine
from peakward.diagnose.signals import Signals
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.case_memory import CaseMemory
from peakward.records.finding import Diagnosis
from peakward.records.measurement import Measurement
from peakward.records.plan import Forecast
from peakward.records.profile import CaseProfile
from peakward.report.cases import label


def diagnosed(
    measured: Sequence[Measurement],
    *,
    profiles: Sequence[CaseProfile],
    memory: Sequence[CaseMemory],
    forecasts: Sequence[Forecast],
    here: Site | None,
) -> tuple[Diagnosis, ...]:
    """One for each measured case of a model, profiled or not."""
    by_profile = {each.case: each for each in profiles}
    by_memory = {each.case: each for each in memory}
    by_forecast = {each.case: each for each in forecasts}
    found = []
    for each in measured:
        case = each.case
        if not isinstance(case, ModelCase):
            continue
        made = by_profile.get(case)
        found.append(
            examine(
                Signals(
                    subject=label(case),
                    case=case,
                    measurement=each,
                    profile=None if made is None else made.profile,
                    n_steps=None if made is None else made.n_steps,
                    memory=by_memory.get(case),
                    site=here if case.device == "cuda" else None,
                    forecast=by_forecast.get(case),
                )
            )
        )
    return tuple(found)
