"""Times one call, for calls that are too short to be timed alone, or says why it could not be measured.

A burst of calls lies between two marks. The median over bursts counts: a ceiling asks for the best that
the device did, a time model for what it usually does.
"""

import math
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch

from peakward.lab.measure import failure
from peakward.lab.measure.clock import Clock, CpuClock, clock_for
from peakward.lab.measure.timer import collector_paused
from peakward.records.calibration import (
    Absence,
    AttentionRate,
    DiskRate,
    LaunchCost,
    LevelRate,
    LinkRate,
    LoadLatency,
    ProductRate,
    Subject,
    TrafficRate,
)
from peakward.records.case import DeviceType

Figure = (
    ProductRate
    | TrafficRate
    | LaunchCost
    | AttentionRate
    | LevelRate
    | LoadLatency
    | LinkRate
    | DiskRate
)


class NotMeasurableError(Exception):
    """The figure cannot be measured on this machine; the message is the reason, shown to the user."""


class Attempt(NamedTuple):
    """One figure to measure, with the name that its absence would have."""

    figure: str
    measure: Callable[[], Figure]


def outcome(attempt: Attempt, subject: Subject) -> Figure | Absence:
    """The figure, or the reason for its absence; a failure costs only this figure."""
    try:
        return attempt.measure()
    except Exception as error:  # noqa: BLE001  a library may raise anything on a type it lacks
        return Absence(subject=subject, figure=attempt.figure, reason=reason(error))


def reason(error: Exception) -> str:
    """The reason why a figure is absent, in one line."""
    return (
        str(error) if isinstance(error, NotMeasurableError) else failure.of_exception(error).reason
    )


TIMED_S: dict[DeviceType, float] = {"cuda": 0.2, "cpu": 0.1}
"""The time per figure: some fifty took two cores 11 s; a GPU's ninety are estimated at half a minute."""
BURST_S = 1e-3
"""The time of a burst: 2000 times the 0.5 µs to which the time between CUDA events is known."""
MAX_CALLS = 100
"""The most calls in a burst. A stream takes about a thousand launches before the host has to wait for
it."""
MIN_BURSTS = 3
MAX_CALL_S = 0.25
"""The longest call; a longer one is given up. On two cores without fp16 arithmetic, fp16 products ran
at 3 GFLOP/s where bf16 ones ran at 400."""
LEAD_S = 200e-6
"""The host's longest time to issue a call: autograd's backward pass of a tiny attention, the slowest of
those timed here, took 75 µs on a shared core."""
CYCLES_PER_S = 2e9
"""The assumed clock of a GPU; a slower clock makes the host's lead longer."""
Call = Callable[[], object]


def device_s(call: Call, device_type: DeviceType) -> float:
    """The median seconds of a call on the device, one right after another.

    On a GPU the calls of a burst queue up behind a kernel that only waits. The device then does not run
    out of work while the host issues one call in LEAD_S or less.

    Raises:
        NotMeasurableError: The call takes longer than MAX_CALL_S.
    """
    clock = clock_for(device_type)
    call()  # loads the kernel
    once_s = _burst_s(call, 1, clock, _nothing)
    if once_s > MAX_CALL_S:
        raise NotMeasurableError(f"a call takes {once_s:.2g} s, more than {MAX_CALL_S} s")
    n_calls = calls_in_a_burst(once_s)
    burst_s = partial(_burst_s, call, n_calls, clock, _lead(n_calls, device_type))
    return _typical_s(burst_s, device_type)


def host_s(call: Call, device_type: DeviceType) -> float:
    """The median seconds until a call returns, with an empty queue before each burst."""
    call()
    return _typical_s(_issued(call, device_type), device_type)


def backward_host_s(call: Call, device_type: DeviceType) -> float:
    """As `host_s`, in the thread that carries a backward pass out: on a GPU one of autograd's own, on a CPU
    the caller's.

    Each burst is within a backward pass of its own, so that the thread has slept before it, as it does while
    a step's forward pass is issued. Its calls are recorded like those of `host_s`, though operators of a
    backward pass are not: the thread alone is to differ, whose cost is in the same unit then.
    """
    start = torch.ones((), device=device_type, requires_grad=True)
    burst_s = _issued(call, device_type)

    def in_backward_s() -> float:
        found: list[float] = []
        _InBackward.apply(start, lambda: found.append(burst_s())).backward()
        return found[0]

    in_backward_s()  # Autograd starts its thread.
    return _typical_s(in_backward_s, device_type)


class _InBackward(torch.autograd.Function):
    """Calls what it is given when its backward pass comes. Its result lies where its input does, and autograd
    chooses the thread by where a node's results lie."""

    @staticmethod
    def forward(ctx: Any, start: torch.Tensor, call: Call) -> torch.Tensor:
        ctx.call = call
        return start.clone()

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[None, None]:
        with torch.enable_grad():  # Backward passes record nothing by themselves.
            ctx.call()
        return None, None


def calls_in_a_burst(call_s: float) -> int:
    """The number of calls that take BURST_S."""
    return max(1, min(MAX_CALLS, math.ceil(BURST_S / call_s))) if call_s > 0 else MAX_CALLS


Burst = Callable[[], float]
"""A burst of calls. Gives the seconds of one."""


def _issued(call: Call, device_type: DeviceType) -> Burst:
    ready = torch.cuda.synchronize if device_type == "cuda" else _nothing
    return partial(_burst_s, call, MAX_CALLS, CpuClock(), ready)


def _typical_s(burst_s: Burst, device_type: DeviceType) -> float:
    times: list[float] = []
    started = perf_counter()
    with collector_paused():
        while len(times) < MIN_BURSTS or perf_counter() - started < TIMED_S[device_type]:
            times.append(burst_s())
    return median(times)


def _burst_s(call: Call, n_calls: int, clock: Clock, before: Call) -> float:
    """The seconds of a call in a burst."""
    clock.reserve(2)
    before()
    clock.mark(0)
    for _ in range(n_calls):
        call()
    clock.mark(1)
    clock.wait(1)
    return clock.between_s(0, 1) / n_calls


def _lead(n_calls: int, device_type: DeviceType) -> Call:
    """Keeps a GPU waiting while the host issues a burst."""
    if device_type == "cpu":
        return _nothing
    cycles = int((1 + n_calls) * LEAD_S * CYCLES_PER_S)
    return lambda: torch.cuda._sleep(cycles)


def _nothing() -> None:
    """Nothing precedes a burst."""
