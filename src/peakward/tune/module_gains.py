"""Predicts what levers give a user's module, by a capture of its operators under each."""

import msgspec

from peakward.diagnose.gains import capped, fastest_first, smallest_first, without
from peakward.levers.catalogue import lever, pull
from peakward.prediction.time.errors_seen import speedup
from peakward.records.case import ModuleCase
from peakward.records.finding import Diagnosis, Finding, LeverGain
from peakward.records.measurement import Interval
from peakward.records.plan import Forecast
from peakward.tune.forecasts import Forecasts


def filled_in(told: Diagnosis, case: ModuleCase, forecasts: Forecasts) -> Diagnosis:
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
    predicted = _speedup(before, after)
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


def _speedup(before: Forecast, after: Forecast) -> Interval | None:
    if before.time is None or after.time is None or not (before.step_s and after.step_s):
        return None
    return speedup(before.time, after.time, before.step_s.estimate / after.step_s.estimate)
