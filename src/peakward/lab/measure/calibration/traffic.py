"""Bandwidth of a copy and of an elementwise operation by size, and of copies between host and GPU.

Sizes go from a few KiB to far beyond the caches.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from peakward.lab.measure.calibration.ceilings import copy_size_bytes
from peakward.lab.measure.calibration.timing import Attempt, NotMeasurableError, device_s
from peakward.records.calibration import Direction, LinkRate, Memory, Traffic, TrafficRate
from peakward.records.case import DeviceType

SMALLEST_BYTES = 4 * 2**10
GROWTH = 8
FLOAT_BYTES = 4
N_TENSORS: dict[Traffic, int] = {"copy": 2, "add": 3}
"""The number of tensors that one call reads or writes."""


def traffic_attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """Both operations at every size. The tensors are drawn once, and each size is a part of them."""
    every = sizes_bytes(copy_size_bytes(device_type) // 2)
    a = torch.rand(every[-1] // FLOAT_BYTES, device=device_type)
    b, out = a.clone(), torch.empty_like(a)
    for size in every:
        part = [each[: size // FLOAT_BYTES] for each in (a, b, out)]
        yield Attempt(f"copy of {size} bytes", partial(_traffic_rate, "copy", part, device_type))
        yield Attempt(f"add of {size} bytes", partial(_traffic_rate, "add", part, device_type))


def sizes_bytes(largest: int) -> tuple[int, ...]:
    """The sizes of each tensor: from a few KiB up by factors of eight, then the largest."""
    sizes = []
    size = SMALLEST_BYTES
    while size < largest:
        sizes.append(size)
        size *= GROWTH
    return (*sizes, largest)


def _traffic_rate(
    operation: Traffic, tensors: list[Tensor], device_type: DeviceType
) -> TrafficRate:
    a, b, out = tensors
    calls = {"copy": lambda: out.copy_(a), "add": lambda: torch.add(a, b, out=out)}
    call_s = device_s(calls[operation], device_type)
    size = a.numel() * a.element_size()
    moved = N_TENSORS[operation] * size
    return TrafficRate(operation=operation, size_bytes=size, bytes_per_s=moved / call_s)


SIZES_BYTES = (4 * 2**10, 256 * 2**20)
"""The sizes: one shows the cost of a copy however little it moves, the other takes 5 ms at 50 GB/s."""
MEMORIES: tuple[Memory, ...] = ("pinned", "pageable")
DIRECTIONS: tuple[Direction, ...] = ("to device", "to host")


def link_attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """Copies from pinned and from pageable memory, in both directions, of a page and of a large buffer."""
    if device_type == "cpu":
        raise NotMeasurableError("a CPU computes in the host's own memory")
    for memory, direction, size in product(MEMORIES, DIRECTIONS, SIZES_BYTES):
        yield Attempt(
            f"{memory} {direction}, {size} bytes", partial(_link_rate, memory, direction, size)
        )


def _link_rate(memory: Memory, direction: Direction, size: int) -> LinkRate:
    host = torch.randint(256, (size,), dtype=torch.uint8)
    host = host.pin_memory() if memory == "pinned" else host
    device = host.cuda()
    source, target = (host, device) if direction == "to device" else (device, host)
    call_s = device_s(lambda: target.copy_(source, non_blocking=True), "cuda")
    return LinkRate(memory=memory, direction=direction, size_bytes=size, bytes_per_s=size / call_s)
