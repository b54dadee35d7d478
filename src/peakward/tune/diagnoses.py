"""Examines the cases that an investigation measured."""

from collections.abc import Sequence

import msgspec

from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.diagnose.examine import examine
from peakward.diagnose.gains import capped, fastest_first, smallest_first, without
from peakward.diagnose.rules import data_loading
from peakward.levers import loader
from peakward.levers.catalogue import lever, pull
from peakward.prediction.time.errors_seen import speedup
from peakward.records.case import Case, LeverCase, ModelCase, ModuleCase, StepCase
from peakward.records.finding import Diagnosis, Finding, LeverGain
from peakward.records.measurement import Interval, Measurement
from peakward.records.memory import CaseMemory
from peakward.records.plan import Forecast
from peakward.records.profile import CaseProfile
from peakward.report.cases import label
from peakward.tune.forecasts import Forecasts


def with_captured_gains(told: Diagnosis, case: ModuleCase, forecasts: Forecasts) -> Diagnosis:
    """The diagnosis with the gain of each lever, or why it is not computed."""
    findings = tuple(_with_gains(each, case, forecasts) for each in told.findings)
    return msgspec.structs.replace(told, findings=findings)


def _with_gains(found: Finding, case: ModuleCase, forecasts: Forecasts) -> Finding:
    gains = tuple(_gain(each.lever, case, found.bound, forecasts) for each in found.gains)
    order = smallest_first if found.code.startswith("MEM") else fastest_first
    return msgspec.structs.replace(found, gains=order(gains))


def _gain(name: str, case: ModuleCase, bound: float | None, forecasts: Forecasts) -> LeverGain:
    candidate = pull(lever(name), case)
    before, after = forecasts.of(case), forecasts.of(candidate)
    if before is None or after is None:
        reason = forecasts.why_none(case if before is None else candidate)
        return without(name, reason or "it has no forecast")
    predicted = _predicted_speedup(before, after)
    saved = None
    if before.needed_bytes is not None and after.needed_bytes is not None:
        saved = before.needed_bytes - after.needed_bytes
    if predicted is None and saved is None:
        return without(name, "; ".join(each.reason for each in after.absent))
    rates = "the datasheet" if before.time is None else before.time.source
    return LeverGain(
        lever=name,
        predicted=predicted,
        gain=capped(predicted, bound),
        saved_bytes=saved,
        source=f"prediction of its captured operators for {before.device}, rates: {rates}",
    )


def _predicted_speedup(before: Forecast, after: Forecast) -> Interval | None:
    if before.time is None or after.time is None or not (before.step_s and after.step_s):
        return None
    return speedup(before.time, after.time, before.step_s.estimate / after.step_s.estimate)


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
            told = with_captured_gains(told, case, forecasts)
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
    """The diagnosis of a live step, whose levers nobody can predict. Waits for a loader that was given are
    answered by the levers that make another of it."""
    unknown = "what a step given as a function would run instead is not known"

    def without_gains(found: Finding) -> Finding:
        names = [each.lever for each in found.gains]
        if found.code == data_loading.CODE and "loader" in case.handles:
            names.extend(loader.NAMES)
        return msgspec.structs.replace(found, gains=tuple(without(name, unknown) for name in names))

    findings = tuple(map(without_gains, told.findings))
    return msgspec.structs.replace(told, case=case, findings=findings)
