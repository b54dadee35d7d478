"""Why a case is among the worst, as far as stored evidence tells; else that it is unknown."""

from collections.abc import Sequence
from typing import NamedTuple

from accuracy import host_reasons
from accuracy.products import ratios
from accuracy.records import Reason, Replayed
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.products import ALIGNED_BYTES
from peakward.records.case import ModelCase
from peakward.records.prediction import PhasePrediction
from peakward.records.profile import CaseProfile
from peakward.report.format import format_cell

PRODUCT_OFF = 0.08
"""From which error on a product is named."""
BUSY = 0.9
"""Of a step, from which on its kernels explain it."""
FULL_CLOCK = 0.97
"""Of the highest clock among all cases: calibrated rates were taken at that."""


class Evidence(NamedTuple):
    """What the reasons are taken from."""

    cases: Sequence[Replayed]
    profiles: dict[ModelCase, CaseProfile]
    on: DeviceModel


def worst(cases: Sequence[Replayed], evidence: Evidence, n: int = 10) -> list[Reason]:
    """The n that the calibrated prediction misses most."""
    ordered = sorted(cases, key=lambda each: -abs(each.error("calibrated")))
    return [
        Reason(key=each.key, error=each.error("calibrated"), reason=reason(each, evidence))
        for each in ordered[:n]
    ]


def reason(case: Replayed, evidence: Evidence) -> str:
    """In words, with the numbers: what is known to differ, then the phase that differs most."""
    found = [_idle(case, evidence)]
    if host_reasons.concerned(case):
        found += host_reasons.causes(case, evidence.cases)
    if case.calibrated.bound == "device":
        found += [_steps(case), _clock(case, evidence), _head(case), _product(case, evidence)]
    causes = [each for each in found if each]
    phase = _phase(case)
    return "; ".join([*(causes or ["unknown"]), *([phase] if phase else [])])


def _idle(case: Replayed, evidence: Evidence) -> str | None:
    """What a profile of the case says of a step that took longer than its kernels."""
    found = evidence.profiles.get(case.case)
    if found is None:
        return None
    busy_s = found.profile.breakdown.together.busy_ns * 1e-9 / found.n_steps
    if busy_s > BUSY * case.measured_s:
        return None
    kernels, told = (
        format_cell(each, "s")
        for each in (busy_s, sum(each.device_s for each in case.calibrated.phases))
    )
    return f"in a profile the device was busy for {kernels} a step, predicted {told}: the host held it up"


def _steps(case: Replayed) -> str | None:
    few = [each for each in case.doubts if "timed steps" in each]
    return f"measured with {few[0]}" if few else None


def _clock(case: Replayed, evidence: Evidence) -> str | None:
    full = max(each.sm_clock_mhz or 0.0 for each in evidence.cases)
    clock = case.sm_clock_mhz
    if clock is None or clock > FULL_CLOCK * full or case.error("calibrated") > 0:
        return None
    return f"the clock was {clock:,.0f} MHz on average, of {full:,.0f}"


def _head(case: Replayed) -> str | None:
    precision = case.case.configuration.precision
    if precision in ("fp32", "tf32") or case.case.model.vocab_size * 2 % ALIGNED_BYTES == 0:
        return None
    return (
        f"the head is {case.case.model.vocab_size:,} wide, unaligned: one slowdown stands for the "
        "95 to 143 TFLOP/s of such products"
    )


def _product(case: Replayed, evidence: Evidence) -> str | None:
    """The longest of the products that err as the step does."""
    profile = evidence.profiles.get(case.case)
    if profile is None:
        return None
    short = case.error("calibrated") < 0
    for each, ratio in ratios(profile, evidence.on):
        if abs(ratio - 1) >= PRODUCT_OFF and (ratio < 1) == short and each.flops_per_s:
            rate, predicted = (
                format_cell(value, "flops_per_s")
                for value in (each.flops_per_s, each.flops_per_s / ratio)
            )
            return f"its product {each.dims} ran at {rate}, predicted {predicted}"
    return None


def _phase(case: Replayed) -> str | None:
    """Of those timed by themselves, the one that the longer of host and device misses most."""
    predicted = {each.phase: each for each in case.calibrated.phases}
    timed = [each for each in case.measured_phases if each.phase in predicted]
    if not timed:
        return None
    found = max(timed, key=lambda each: abs(each.median_s - _longer_s(predicted[each.phase])))
    device, host = predicted[found.phase].device_s, predicted[found.phase].host_s
    return (
        f"the {found.phase} took {format_cell(found.median_s, 's')}, predicted "
        f"{format_cell(device, 's')} on the device, {format_cell(host, 's')} on the host"
    )


def _longer_s(phase: PhasePrediction) -> float:
    return max(phase.device_s, phase.host_s)
