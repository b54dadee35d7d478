"""Measures the cost of an operator before it does anything: the device's pause and the host's call."""

from collections.abc import Iterator
from functools import partial

import torch

from peakward.lab.measure.calibration.attempt import Attempt, NotMeasurableError
from peakward.lab.measure.calibration.timing import Call, device_s, host_s
from peakward.records.calibration import Launch, LaunchCost
from peakward.records.case import DeviceType

WIDTH = 16
"""The width of the square operands: their product takes less time than a launch."""


def attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """A kernel's cost on the device, three operators' on the host."""
    a, b = (torch.rand(WIDTH, WIDTH, device=device_type) for _ in range(2))
    out, weight = torch.empty_like(a), a.clone().requires_grad_()
    yield Attempt(
        "kernel in a queue", partial(_kernel, lambda: torch.add(a, b, out=out), device_type)
    )
    calls: dict[Launch, Call] = {
        "elementwise": lambda: torch.add(a, b),
        "matmul": lambda: torch.mm(a, b),
        "autograd": lambda: torch.add(weight, b),
    }
    for operation, call in calls.items():
        yield Attempt(f"{operation} on the host", partial(_dispatch, operation, call, device_type))


def _kernel(call: Call, device_type: DeviceType) -> LaunchCost:
    if device_type == "cpu":
        raise NotMeasurableError("a CPU has no queue: an operator runs as it is called")
    return LaunchCost(side="device", operation="elementwise", call_s=device_s(call, device_type))


def _dispatch(operation: Launch, call: Call, device_type: DeviceType) -> LaunchCost:
    return LaunchCost(side="host", operation=operation, call_s=host_s(call, device_type))
