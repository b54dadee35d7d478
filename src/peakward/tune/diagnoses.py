"""Examines the cases that an investigation measured."""

from collections.abc import Sequence

import msgspec

from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.diagnose.examine import examine
from peakward.records.case import Case, LeverCase, ModelCase, ModuleCase, StepCase
from peakward.records.case_memory import CaseMemory
from peakward.records.finding import Diagnosis, Finding
from peakward.records.measurement import Measurement
from peakward.records.profile import CaseProfile
from peakward.report.cases import label
from peakward.tune import module_gains
from peakward.tune.forecasts import Forecasts


def diagnosed(
    measured: Sequence[Measurement],
    *,
    profiles: Sequence[CaseProfile],
    memory: Sequence[CaseMemory],
    forecasts: Forecasts,
) -> tuple[Diagnosis, ...]:
    """One for each measured case of a model, a user's module or a live step, profiled or not."""
    by_profile = {each.case: each for each in profiles}
    by_memory: dict[Case, CaseMemory] = {each.case: each for each in memory}
    found = []
    for each in measured:
        case = each.case
        if not isinstance(case, LeverCase):
            continue
        told = examine(_input(each, case, by_profile.get(case), by_memory.get(case), forecasts))
        if isinstance(case, ModuleCase):
            told = module_gains.filled_in(told, case, forecasts)
        found.append(_of_step(told, case) if isinstance(case, StepCase) else told)
    return tuple(found)


def _input(
    measured: Measurement,
    case: LeverCase,
    made: CaseProfile | None,
    memory: CaseMemory | None,
    forecasts: Forecasts,
) -> DiagnosisInput:
    """All that is known of the case; of a live step neither what it is nor what it would take."""
    return DiagnosisInput(
        subject=label(case),
        case=case if isinstance(case, ModelCase) else None,
        module=case if isinstance(case, ModuleCase) else None,
        measurement=measured,
        profile=None if made is None else made.profile,
        n_steps=None if made is None else made.n_steps,
        memory=memory,
        site=forecasts.here if case.device == "cuda" else None,
        forecast=forecasts.of(case),
    )


def _of_step(told: Diagnosis, case: StepCase) -> Diagnosis:
    """The diagnosis of a live step, whose levers nobody can predict."""
    unknown = "not computed: what a step given as a function would run instead is not known"

    def without_gains(found: Finding) -> Finding:
        gains = tuple(msgspec.structs.replace(each, source=unknown) for each in found.gains)
        return msgspec.structs.replace(found, gains=gains)

    findings = tuple(map(without_gains, told.findings))
    return msgspec.structs.replace(told, case=case, findings=findings)
