"""What the levers of a finding are predicted to give, no more than its bound."""

from peakward.diagnose.signals import Signals
from peakward.levers.catalogue import case_obstacle, changes, lever, obstacle, pull
from peakward.prediction.planning.changes import LEAST_GAIN, Base, change
from peakward.records.finding import LeverGain
from peakward.records.lever import Lever
from peakward.records.measurement import Interval

TRAINING = ("forward_backward", "train_step")


def gains(names: tuple[str, ...], signals: Signals, bound: float | None) -> tuple[LeverGain, ...]:
    """Of each lever that changes the case and applies to it, in the order given.

    Without a case every lever stays that the trace does not rule out, and no gain is computed; nor is it
    here of a user's module, of which only a capture tells.
    """
    return tuple(_gain(name, signals, bound) for name in names if _applies(name, signals))


def fastest_first(found: tuple[LeverGain, ...]) -> tuple[LeverGain, ...]:
    """Less those that are predicted to be no reason to pull them."""
    kept = [each for each in found if each.gain is None or each.gain.estimate >= LEAST_GAIN]
    return tuple(sorted(kept, key=lambda each: -(each.gain.estimate if each.gain else 0.0)))


def smallest_first(found: tuple[LeverGain, ...]) -> tuple[LeverGain, ...]:
    """By the memory that is left to need, less those that are predicted to save none."""
    kept = [each for each in found if each.saved_bytes is None or each.saved_bytes > 0]
    return tuple(sorted(kept, key=lambda each: -(each.saved_bytes or 0)))


def capped(predicted: Interval | None, bound: float | None) -> Interval | None:
    """No end above Amdahl's bound."""
    if predicted is None or bound is None:
        return predicted
    return Interval(
        estimate=min(predicted.estimate, bound),
        low=min(predicted.low, bound),
        high=min(predicted.high, bound),
        level=predicted.level,
    )


def _applies(name: str, signals: Signals) -> bool:
    case = signals.configured
    if case is None:
        return _fits_trace(lever(name), signals)
    pulled, capability = lever(name), signals.accelerator.compute_capability
    if case.device == "cuda" and signals.accelerator.vendor and not signals.has(name):
        return False
    reason = obstacle(
        pulled, case, compute_capability=capability, has_compiler=True
    ) or case_obstacle(pull(pulled, case), compute_capability=capability, has_compiler=True)
    return reason is None and changes(pulled, case)


def _fits_trace(pulled: Lever, signals: Signals) -> bool:
    """Whether what the trace was taken on can do it, and whether it is for a pass that trains if that was
    one."""
    profile = signals.profile
    if profile is None:
        return signals.has(pulled.name)
    if not profile.is_of_host and not signals.has(pulled.name):
        return False
    trains = any(each.phase == "backward" for each in profile.kernels)
    on = "cpu" if profile.is_of_host else "cuda"
    return on in pulled.device_types and not (trains and set(pulled.passes).isdisjoint(TRAINING))


def _gain(name: str, signals: Signals, bound: float | None) -> LeverGain:
    case, told, here, pulled = signals.case, signals.forecast, signals.site, lever(name)
    if signals.module is not None:
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
    """Whose gain is not computed."""
    return LeverGain(
        lever=name, predicted=None, gain=None, saved_bytes=None, source=f"not computed: {reason}"
    )
