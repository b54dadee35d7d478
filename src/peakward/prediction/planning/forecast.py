"""A case on one kind of device: time, memory, rates and cost, before anything is run."""

from typing import NamedTuple

import msgspec

from peakward.prediction.communication import communication, update_saved_s
from peakward.prediction.floor import compute_type, floor, peak_flops_per_s
from peakward.prediction.flops import step_flops
from peakward.prediction.memory.fit import fits, largest_batch, longest_sequence
from peakward.prediction.memory.peak import (
    CONTEXT_BYTES,
    peak_memory,
    resident_bytes,
    tells_reserved,
)
from peakward.prediction.memory.step import planned
from peakward.prediction.planning.site import Attempts, Site, cost, energy, gpu_hours, over, times
from peakward.prediction.time.step import step_time
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Interval
from peakward.records.memory import MemoryPrediction
from peakward.records.plan import Communication, Forecast
from peakward.records.prediction import StepTime

# Whether a case fits the memory of one GPU of a group, and the largest batch that does.

COMPILED_SHARE = (0.75, 1.06)
"""Reserved by a compiled step over an eager one's, where the compiled one's is not predicted itself: 81
cases on an H200 and an H100 had 0.764 to 1.055. Of compiled prefill and decode none was measured."""
CAPTURED_SHARE = (0.95, 1.8)
"""Likewise where the step is a CUDA graph, which has a pool of its own beside what the steps before
it left: four cases on an H200 had 0.957 to 1.784, sixteen decode steps on an H100 1.002 to 1.094."""


class Room(NamedTuple):
    """The room on one GPU."""

    needed_bytes: int
    """Needed bytes. Compiled code and CUDA graphs have the figure of the same step without them."""
    fits: bool | None
    """None: the limit lies within what such steps have been seen to need."""


def room(case: ModelCase, memory: MemoryPrediction, on: Site, attempts: Attempts) -> Room:
    """The room on one GPU. Near the limit the allocator returns what it has free, so that a case may fit that
    would have reserved more."""
    limit = on.limit_bytes(case.memory_limit_bytes)
    if memory.reserved_bytes is None:
        return _as_eager(case, on, limit, attempts)
    needed = memory.reserved_bytes + memory.context_bytes
    if needed <= limit:
        return Room(needed, True)
    if memory.peak_bytes + memory.context_bytes > limit:
        return Room(needed, False)
    return Room(needed, fits(case, limit, on.group))


def is_too_large(case: ModelCase, on: Site) -> bool:
    """Whether parameters, gradients and moments alone leave no room there: no need to look at the rest. False
    also where the case's memory is not predicted."""
    if resident_bytes(case, on.group) + CONTEXT_BYTES <= on.limit_bytes(case.memory_limit_bytes):
        return False
    try:
        planned(case)
    except PeakwardError:
        return False
    return tells_reserved(case)


def largest_batch_size(case: ModelCase, on: Site) -> int:
    """The largest batch of one GPU; 0 where not a single sequence fits.

    Raises:
        PeakwardError: a setting whose memory is not predicted.
    """
    return largest_batch(case, on.limit_bytes(case.memory_limit_bytes), on.group)


def longest_seq_len(case: ModelCase, on: Site) -> int:
    """The longest sequence on one GPU with the case's batch; 0 where not even the shortest fits.

    Raises:
        PeakwardError: a setting whose memory is not predicted, or lengths that vary.
    """
    return longest_sequence(case, on.limit_bytes(case.memory_limit_bytes), on.group)


def _as_eager(case: ModelCase, on: Site, limit: int, attempts: Attempts) -> Room:
    """By the range of what such steps have needed beside eager ones."""
    captured = case.configuration.cuda_graphs
    low, high = CAPTURED_SHARE if captured else COMPILED_SHARE
    kind = "a CUDA graph" if captured else "compiled code"
    reason = f"{kind} needs {low} to {high} times what eager code does, which stands in its place"
    attempts.without("needed memory", reason)
    reserved = peak_memory(_eager(case), on.group).reserved_bytes
    assert reserved is not None
    least, most = (CONTEXT_BYTES + share * reserved for share in (low, high))
    fits_ = True if most <= limit else False if least > limit else None
    return Room(CONTEXT_BYTES + reserved, fits_)


def _eager(case: ModelCase) -> ModelCase:
    settings = msgspec.structs.replace(case.configuration, compile="none", cuda_graphs=False)
    return msgspec.structs.replace(case, configuration=settings)


# The forecast.


def forecast(case: ModelCase, on: Site) -> Forecast:
    """All that is known of the case there; what cannot be is absent, with its reason."""
    attempts = Attempts()
    time, shared, step_s = timed(case, on, attempts)
    step_s = _possible(case, step_s, on)
    least_s = _least_s(case, on.calibration, on)
    memory = attempts.of("memory", lambda: peak_memory(case, on.group))
    found = None if memory is None else room(case, memory, on, attempts)
    tokens = case.workload.tokens_per_step
    peak = peak_flops_per_s(on.device, compute_type(case))
    if peak is None:
        reason = f"no peak rate in {compute_type(case)} is stated for {on.device.name}"
        attempts.without("MFU", reason)
    return Forecast(
        case=case,
        device=on.device.key,
        device_name=on.device.name,
        group=on.group,
        time=time,
        communication=shared,
        step_s=step_s,
        floor_s=least_s,
        tokens_per_s=over(step_s, tokens * _n_gpus(on)),
        mfu=None if peak is None else over(step_s, (step_flops(case) or 0.0) / peak),
        peak_flops_per_s=peak,
        memory=memory,
        needed_bytes=None if found is None else found.needed_bytes,
        limit_bytes=on.limit_bytes(case.memory_limit_bytes),
        fits=None if found is None else found.fits,
        gpu_hours_per_million_tokens=times(step_s, gpu_hours(tokens)),
        cost_per_million_tokens=cost(tokens, step_s, on),
        energy_per_token_j=energy(tokens, step_s, on, attempts),
        absent=attempts.absent,
    )


class Timed(NamedTuple):
    """The known figures of how long a step takes."""

    alone: StepTime | None
    communication: Communication | None
    step_s: Interval | None


def timed(case: ModelCase, on: Site, attempts: Attempts) -> Timed:
    """The part of `forecast` that concerns time."""
    alone = attempts.of("step time", lambda: _time(case, on))
    shared = _communication(case, alone, on, attempts)
    return Timed(alone, shared, _step_s(alone, shared, on))


def _time(case: ModelCase, on: Site) -> StepTime:
    if on.model is None:
        raise PeakwardError(on.why_no_model)
    return step_time(case, on.model)


def _communication(
    case: ModelCase, time: StepTime | None, on: Site, attempts: Attempts
) -> Communication | None:
    group = on.group
    if group is None or time is None:
        return None
    return attempts.of("communication", lambda: communication(case, time, group, on.device))


def _step_s(time: StepTime | None, shared: Communication | None, on: Site) -> Interval | None:
    """The time of a step; None for a group whose communication is not known."""
    if time is None or on.group is None:
        return None if time is None else time.step_s
    if shared is None:
        return None
    saved_s, alone_s, more_s = update_saved_s(time, on.group), time.step_s, shared.exposed_s
    scale = 1 - saved_s / alone_s.estimate
    return Interval(
        estimate=alone_s.estimate * scale + more_s.estimate,
        low=alone_s.low * scale + more_s.low,
        high=alone_s.high * scale + more_s.high,
        level=alone_s.level,
    )


def _possible(case: ModelCase, step_s: Interval | None, on: Site) -> Interval | None:
    """The interval's ends are factors; what the datasheet rules out is cut off. The floor of experts is
    of choices at random, and rules nothing out."""
    least_s = _least_s(case, None, on)
    routed = case.model.n_experts > 1
    if step_s is None or least_s is None or routed or step_s.low >= least_s:
        return step_s
    return Interval(
        estimate=max(step_s.estimate, least_s),
        low=least_s,
        high=max(step_s.high, least_s),
        level=step_s.level,
    )


def _least_s(case: ModelCase, calibration: Calibration | None, on: Site) -> float | None:
    """The floor of a step, for which nothing need be sent; of fsdp's update each GPU has its share."""
    found = floor(case, calibration=calibration, device=on.device)
    if found.floor_s is None or on.group is None or on.group.parallel == "ddp":
        return found.floor_s
    update_s = sum(each.floor_s or 0.0 for each in found.phases if each.phase == "optimizer")
    return found.floor_s - (1 - 1 / on.group.n_gpus) * update_s


def _n_gpus(on: Site) -> int:
    return 1 if on.group is None else on.group.n_gpus
