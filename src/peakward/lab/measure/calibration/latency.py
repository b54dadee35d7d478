"""Measures latency by working set: how long a load takes that must wait for the one before it.

The set is one cycle through its lines in random order. Each line holds the place of the next, so
nothing can fetch ahead. On a CPU one core follows it, in pages of the usual size: beyond the reach of
the TLB, walking the page table is part of a load. On a GPU one warp follows it.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from peakward.kernels.ops.pointer_chase import native
from peakward.lab.measure import probe
from peakward.lab.measure.calibration import levels
from peakward.lab.measure.calibration.attempt import Attempt, NotMeasurableError
from peakward.lab.measure.calibration.timing import device_s
from peakward.records.calibration import LoadLatency
from peakward.records.case import DeviceType

LINE_BYTES = 128
"""The distance from one place to the next: a line of an NVIDIA GPU or of Apple's CPUs, and two lines of
other CPUs, which may fetch lines in pairs."""
OFFSET_BYTES = 8
N_LOADS: dict[DeviceType, int] = {"cuda": 2**13, "cpu": 2**18}
"""The loads of one call. They take some ms on a GPU, beside which a launch is nothing. On a CPU they
take 0.3 ms from the first cache, beside which the call is nothing, and 50 ms from the memory of a
shared machine."""
MOST_WARMING_LOADS = 2**18
"""The most loads made before any is timed; a shorter cycle is followed once. 32 MiB have so many lines."""

Chase = Callable[[Tensor, Tensor, int], None]


def attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """The working sets of `levels`.

    Raises:
        NotMeasurableError: a CPU whose machine has no C++ compiler.
    """
    chase = _chase(device_type)
    for size, level, _ in levels.sets(device_type):
        latency = partial(_latency, chase, size, level, device_type)
        yield Attempt(f"working set of {size} bytes", latency)


def _chase(device_type: DeviceType) -> Chase:
    if device_type == "cuda":
        from peakward.kernels.ops.pointer_chase import triton

        return triton.chase
    compiler = probe.compiler()
    if compiler is None:
        raise NotMeasurableError(
            "no C++ compiler on the PATH, in which the chain of loads is written"
        )
    return native.build(compiler)


def cycle(size: int, device_type: DeviceType) -> Tensor:
    """Offsets in bytes: every line holds the offset of another, and the chain goes through all lines."""
    order = torch.randperm(size // LINE_BYTES, device=device_type) * LINE_BYTES
    table = torch.zeros(size // OFFSET_BYTES, dtype=torch.int64, device=device_type)
    table[order // OFFSET_BYTES] = order.roll(-1)
    return table


def _latency(chase: Chase, size: int, level: str | None, device_type: DeviceType) -> LoadLatency:
    levels.refuse_without_room(size, device_type)
    table = cycle(size, device_type)
    position = torch.zeros(1, dtype=torch.int64, device=device_type)
    n_loads = N_LOADS[device_type]
    chase(table, position, min(size // LINE_BYTES, MOST_WARMING_LOADS))
    call_s = device_s(lambda: chase(table, position, n_loads), device_type)
    return LoadLatency(level=level, working_set_bytes=size, load_s=call_s / n_loads)
