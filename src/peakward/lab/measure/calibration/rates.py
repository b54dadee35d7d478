"""Measures one subject of the full calibration, as far as possible: of these, launch costs are here."""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import torch

from peakward.lab.measure.calibration import disk, levels, products, traffic
from peakward.lab.measure.calibration.timing import (
    Attempt,
    Call,
    Figure,
    NotMeasurableError,
    backward_host_s,
    device_s,
    host_s,
    outcome,
    reason,
)
from peakward.lab.measure.crowd import Crowd
from peakward.records.calibration import Absence, Launch, LaunchCost, Rates, Subject
from peakward.records.case import DeviceType


def attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """A kernel's cost on the device, three operators' on the host, that of one in a backward pass too."""
    a, b = (torch.rand(WIDTH, WIDTH, device=device_type) for _ in range(2))
    out, weight = torch.empty_like(a), a.clone().requires_grad_()
    yield Attempt(
        "kernel in a queue", partial(_kernel, lambda: torch.add(a, b, out=out), device_type)
    )

    def recorded() -> torch.Tensor:
        return torch.add(weight, b)

    calls: dict[Launch, Callable[[], float]] = {
        "elementwise": lambda: host_s(lambda: torch.add(a, b), device_type),
        "matmul": lambda: host_s(lambda: torch.mm(a, b), device_type),
        "autograd": lambda: host_s(recorded, device_type),
        "autograd in a backward pass": lambda: backward_host_s(recorded, device_type),
    }
    for operation, timed in calls.items():
        yield Attempt(f"{operation} on the host", partial(_dispatch, operation, timed))


ATTEMPTS: dict[Subject, Callable[[DeviceType], Iterator[Attempt]]] = {
    "products": products.product_attempts,
    "traffic": traffic.traffic_attempts,
    "launches": attempts,
    "attention": products.attention_attempts,
    "levels": levels.level_attempts,
    "latency": levels.latency_attempts,
    "link": traffic.link_attempts,
    "disk": disk.attempts,
}
TIMED_ON_HOST: tuple[Subject, ...] = ("launches", "disk")
"""The subjects that are timed on a GPU's host too."""


def rates(subject: Subject, device_type: DeviceType) -> Rates:
    """The subject's figures, and the reasons for the missing ones."""
    figures: list[Figure] = []
    absent: list[Absence] = []
    with Crowd() as crowd:
        for each in _outcomes(subject, device_type):
            if isinstance(each, Absence):
                absent.append(each)
            else:
                figures.append(each)
    doubt = crowd.doubt() if device_type == "cpu" or subject in TIMED_ON_HOST else None
    return msgspec.structs.replace(
        Rates(absent=tuple(absent), doubts=() if doubt is None else (f"{subject}: {doubt}",)),
        **{subject: tuple(figures)},
    )


def _outcomes(subject: Subject, device_type: DeviceType) -> Iterator[Figure | Absence]:
    """The outcome of each attempt; a subject that cannot be prepared at all is one absence."""
    try:
        for attempt in ATTEMPTS[subject](device_type):
            yield outcome(attempt, subject)
    except Exception as error:  # noqa: BLE001  as in `outcome`
        yield Absence(subject=subject, reason=reason(error))


WIDTH = 16
"""The width of the square operands: their product takes less time than a launch."""


def _kernel(call: Call, device_type: DeviceType) -> LaunchCost:
    if device_type == "cpu":
        raise NotMeasurableError("a CPU has no queue: an operator runs as it is called")
    return LaunchCost(side="device", operation="elementwise", call_s=device_s(call, device_type))


def _dispatch(operation: Launch, timed: Callable[[], float]) -> LaunchCost:
    return LaunchCost(side="host", operation=operation, call_s=timed())
