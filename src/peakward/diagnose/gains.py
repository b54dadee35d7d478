"""Predicts the gain of each lever that a finding names, cut at the finding's bound."""

from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.levers.catalogue import case_obstacle, changes, lever, obstacle, pull
from peakward.prediction.planning.changes import LEAST_GAIN, Base, change
from peakward.records.finding import LeverGain
from peakward.records.lever import Lever
from peakward.records.measurement import Interval

TRAINING = ("forward_backward", "train_step")


def gains(
    names: tuple[str, ...], given: DiagnosisInput, bound: float | None
) -> tuple[LeverGain, ...]:
    """The gains of the levers that change the case and apply to it, in the order given.

    Without a case, every lever is kept that the trace does not rule out, and its gain is not computed.
    The gain for a user's module is not computed here either, because it needs a capture of the module.
    """
    return tuple(_gain(name, given, bound) for name in names if _applies(name, given))


def fastest_first(found: tuple[LeverGain, ...]) -> tuple[LeverGain, ...]:
    """The fastest first; levers whose predicted gain is too small to pull them are left out."""
    kept = [each for each in found if each.gain is None or each.gain.estimate >= LEAST_GAIN]
    return tuple(sorted(kept, key=lambda each: -(each.gain.estimate if each.gain else 0.0)))


def smallest_first(found: tuple[LeverGain, ...]) -> tuple[LeverGain, ...]:
    """The largest saving of memory first; levers that are predicted to save none are left out."""
    kept = [each for each in found if each.saved_bytes is None or each.saved_bytes > 0]
    return tuple(sorted(kept, key=lambda each: -(each.saved_bytes or 0)))


def capped(predicted: Interval | None, bound: float | None) -> Interval | None:
    """The interval, with neither end above Amdahl's bound."""
    if predicted is None or bound is None:
        return predicted
    return Interval(
        estimate=min(predicted.estimate, bound),
        low=min(predicted.low, bound),
        high=min(predicted.high, bound),
        level=predicted.level,
    )


def _applies(name: str, given: DiagnosisInput) -> bool:
    case = given.configured
    if case is None:
        return _fits_trace(lever(name), given)
    pulled, capability = lever(name), given.accelerator.compute_capability
    if case.device == "cuda" and given.accelerator.vendor and not given.has(name):
        return False
    reason = obstacle(
        pulled, case, compute_capability=capability, has_compiler=True
    ) or case_obstacle(pull(pulled, case), compute_capability=capability, has_compiler=True)
    return reason is None and changes(pulled, case)


def _fits_trace(pulled: Lever, given: DiagnosisInput) -> bool:
    """Whether the trace's device can run the lever, and the lever serves training if the trace trains."""
    profile = given.profile
    if profile is None:
        return given.has(pulled.name)
    if not profile.is_of_host and not given.has(pulled.name):
        return False
    trains = any(each.phase == "backward" for each in profile.kernels)
    on = "cpu" if profile.is_of_host else "cuda"
    return on in pulled.device_types and not (trains and set(pulled.passes).isdisjoint(TRAINING))


def _gain(name: str, given: DiagnosisInput, bound: float | None) -> LeverGain:
    case, told, here, pulled = given.case, given.forecast, given.site, lever(name)
    if given.module is not None:
        return without(name, "of a module, its operators under the lever are not known")
    if case is None:
        return without(name, "no case: a trace does not say what would run instead")
    if told is None or here is None:
        return without(name, "the device is not catalogued, or is a CPU")
    found = change((pulled,), Base(case, told), here)
    if found.speedup is None and found.needed_bytes is None:
        reason = "; ".join(each.reason for each in found.absent) or "its step time is not predicted"
        return without(name, reason)
    saved = None
    if found.needed_bytes is not None and told.needed_bytes is not None:
        saved = told.needed_bytes - found.needed_bytes
    rates = "the datasheet" if told.time is None else told.time.source
    return LeverGain(
        lever=name,
        predicted=found.speedup,
        gain=capped(found.speedup, bound),
        saved_bytes=saved,
        source=f"prediction for {here.device.name}, rates: {rates}",
    )


def without(name: str, reason: str) -> LeverGain:
    """A lever whose gain is not computed, with the reason."""
    return LeverGain(
        lever=name, predicted=None, gain=None, saved_bytes=None, source=f"not computed: {reason}"
    )
