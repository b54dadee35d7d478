"""Bandwidth of a copy and of an elementwise operation, from a few KiB to far beyond the caches."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from peakward.lab.measure.calibration.attempt import Attempt
from peakward.lab.measure.calibration.ceilings import copy_size_bytes
from peakward.lab.measure.calibration.timing import device_s
from peakward.records.calibration import Traffic, TrafficRate
from peakward.records.case import DeviceType

SMALLEST_BYTES = 4 * 2**10
GROWTH = 8
FLOAT_BYTES = 4
N_TENSORS: dict[Traffic, int] = {"copy": 2, "add": 3}
"""The number of tensors that one call reads or writes."""


def attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """Both operations at every size. The tensors are drawn once, and each size is a part of them."""
    every = sizes_bytes(copy_size_bytes(device_type) // 2)
    a = torch.rand(every[-1] // FLOAT_BYTES, device=device_type)
    b, out = a.clone(), torch.empty_like(a)
    for size in every:
        part = [each[: size // FLOAT_BYTES] for each in (a, b, out)]
        yield Attempt(f"copy of {size} bytes", partial(_rate, "copy", part, device_type))
        yield Attempt(f"add of {size} bytes", partial(_rate, "add", part, device_type))


def sizes_bytes(largest: int) -> tuple[int, ...]:
    """The sizes of each tensor: from a few KiB up by factors of eight, then the largest."""
    sizes = []
    size = SMALLEST_BYTES
    while size < largest:
        sizes.append(size)
        size *= GROWTH
    return (*sizes, largest)


def _rate(operation: Traffic, tensors: list[Tensor], device_type: DeviceType) -> TrafficRate:
    a, b, out = tensors
    calls = {"copy": lambda: out.copy_(a), "add": lambda: torch.add(a, b, out=out)}
    call_s = device_s(calls[operation], device_type)
    size = a.numel() * a.element_size()
    moved = N_TENSORS[operation] * size
    return TrafficRate(operation=operation, size_bytes=size, bytes_per_s=moved / call_s)
