"""Times copies between the host's memory and the GPU's."""

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch

from peakward.lab.measure.calibration.attempt import Attempt, NotMeasurableError
from peakward.lab.measure.calibration.timing import device_s
from peakward.records.calibration import Direction, LinkRate, Memory
from peakward.records.case import DeviceType

SIZES_BYTES = (4 * 2**10, 256 * 2**20)
"""The sizes: one shows the cost of a copy however little it moves, the other takes 5 ms at 50 GB/s."""
MEMORIES: tuple[Memory, ...] = ("pinned", "pageable")
DIRECTIONS: tuple[Direction, ...] = ("to device", "to host")


def attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """Copies from pinned and from pageable memory, in both directions, of a page and of a large buffer."""
    if device_type == "cpu":
        raise NotMeasurableError("a CPU computes in the host's own memory")
    for memory, direction, size in product(MEMORIES, DIRECTIONS, SIZES_BYTES):
        yield Attempt(
            f"{memory} {direction}, {size} bytes", partial(_rate, memory, direction, size)
        )


def _rate(memory: Memory, direction: Direction, size: int) -> LinkRate:
    host = torch.randint(256, (size,), dtype=torch.uint8)
    host = host.pin_memory() if memory == "pinned" else host
    device = host.cuda()
    source, target = (host, device) if direction == "to device" else (device, host)
    call_s = device_s(lambda: target.copy_(source, non_blocking=True), "cuda")
    return LinkRate(memory=memory, direction=direction, size_bytes=size, bytes_per_s=size / call_s)
