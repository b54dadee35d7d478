"""What the rules say of the cases that an investigation measured."""

from collections.abc import Sequence

import msgspec

from peakward.diagnose.examine import examine
from peakward.diagnose.signals import Signals
from peakward.prediction.planning.site import Site
from peakward.records.case import Case, ModelCase, StepCase
from peakward.records.case_memory import CaseMemory
from peakward.records.finding import Diagnosis, Finding
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
    """One for each measured case of a model, profiled or not, and for each of a live step."""
    by_profile = {each.case: each for each in profiles}
    by_memory: dict[Case, CaseMemory] = {each.case: each for each in memory}
    by_forecast = {each.case: each for each in forecasts}
    found = []
    for each in measured:
        case = each.case
        if not isinstance(case, ModelCase | StepCase):
            continue
        made = by_profile.get(case)
        told = examine(
            Signals(
                subject=label(case),
                # What levers give is predicted of a decoder alone.
                case=case if isinstance(case, ModelCase) else None,
                measurement=each,
                profile=None if made is None else made.profile,
                n_steps=None if made is None else made.n_steps,
                memory=by_memory.get(case),
                site=here if case.device == "cuda" else None,
                forecast=by_forecast.get(case),
            )
        )
        found.append(told if isinstance(case, ModelCase) else _of_step(told, case))
    return tuple(found)


def _of_step(told: Diagnosis, case: StepCase) -> Diagnosis:
    """The diagnosis of a live step, whose levers nobody can predict."""
    unknown = "not computed: what a step given as a function would run instead is not known"

    def without_gains(found: Finding) -> Finding:
        gains = tuple(msgspec.structs.replace(each, source=unknown) for each in found.gains)
        return msgspec.structs.replace(found, gains=gains)

    findings = tuple(map(without_gains, told.findings))
    return msgspec.structs.replace(told, case=case, findings=findings)
