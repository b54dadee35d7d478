"""A captured module on one kind of device, and on several."""

from collections.abc import Callable, Iterable

import msgspec

from peakward.prediction.memory.peak import CONTEXT_BYTES, module_lifetimes, module_memory
from peakward.prediction.memory.replay import OverLimitError, replay
from peakward.prediction.operators.module_optimizer import with_optimizer
from peakward.prediction.planning.site import Attempts, Site, cost, energy, gpu_hours, over, times
from peakward.prediction.time.step import module_time
from peakward.records.case import ModuleCase
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import ModuleCapture
from peakward.records.plan import Absent, DevicePlan, Forecast, Plan
from peakward.records.prediction import StepTime

BATCH_IS_GIVEN = "a module is captured at one batch and length: plan it with others"
LEVERS_ARE_NOT_TRIED = "a module is captured as it is asked for: plan it with levers"


def module_plan(
    sites: Iterable[Site],
    capture: Callable[[Site], tuple[ModuleCase, ModuleCapture]],
    *,
    command: str,
) -> Plan:
    """A case of a module on each device.

    Args:
        capture: Gives the case, the same for all, and its step as that device's kernels make it.
    """
    seen = [(on, *capture(on)) for on in sites]
    _, case, first = seen[0]
    devices = tuple(_device_plan(case, on, captured) for on, case, captured in seen)
    return Plan(case=case, command=command, devices=devices, n_parameters=first.n_parameters)


def _device_plan(case: ModuleCase, on: Site, capture: ModuleCapture) -> DevicePlan:
    captured = with_optimizer(capture, case.configuration.optimizer)
    found = module_forecast(captured, on, case.memory_limit_bytes)
    reasons = {
        "largest batch": BATCH_IS_GIVEN,
        "longest sequence": BATCH_IS_GIVEN,
        "levers": LEVERS_ARE_NOT_TRIED,
    }
    return DevicePlan(
        forecast=msgspec.structs.replace(found, case=case),
        price_per_gpu_hour=on.price_per_gpu_hour,
        largest_batch_size=None,
        changes=(),
        composition=None,
        composed_case=None,
        absent=tuple(Absent(figure=name, reason=reason) for name, reason in reasons.items()),
    )


def module_forecast(capture: ModuleCapture, on: Site, limit_bytes: int | None = None) -> Forecast:
    """All that is known of the module's step there; rates and cost where its tokens are.

    Args:
        limit_bytes: The most that the step may take, where that is less than the device has.
    """
    attempts = Attempts()
    time = attempts.of("step time", lambda: _time(capture, on))
    step_s = None if time is None else time.step_s
    unknown = "what the maths of a module needs is not known from its operators"
    for figure in ("floor", "MFU"):
        attempts.without(figure, unknown)
    tokens = capture.tokens
    if tokens is None:
        attempts.without("tokens/s", "how many tokens a step has is not known: say so by tokens=")
    memory, limit = module_memory(capture), on.limit_bytes(limit_bytes)
    assert memory.device_bytes is not None
    return Forecast(
        case=capture.case,
        device=on.device.key,
        device_name=on.device.name,
        group=None,
        time=time,
        communication=None,
        step_s=step_s,
        floor_s=None,
        tokens_per_s=None if tokens is None else over(step_s, tokens),
        mfu=None,
        peak_flops_per_s=None,
        memory=memory,
        needed_bytes=memory.device_bytes,
        limit_bytes=limit,
        fits=memory.device_bytes <= limit or _fits(capture, limit),
        gpu_hours_per_million_tokens=None if tokens is None else times(step_s, gpu_hours(tokens)),
        cost_per_million_tokens=None if tokens is None else cost(tokens, step_s, on),
        energy_per_token_j=None if tokens is None else energy(tokens, step_s, on, attempts),
        absent=attempts.absent,
    )


def _time(capture: ModuleCapture, on: Site) -> StepTime:
    if on.model is None:
        raise PeakwardError(on.why_no_model)
    return module_time(capture, on.model)


def _fits(capture: ModuleCapture, limit_bytes: int) -> bool:
    """Near the limit the allocator returns what it has free."""
    try:
        replay(module_lifetimes(capture), limit_bytes - CONTEXT_BYTES)
    except OverLimitError:
        return False
    return True
