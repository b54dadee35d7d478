"""Where a GPU's time went: busy or idle, computing, communicating or moving memory."""

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import Breakdown, DeviceTime
from peakward.traces.intervals import Intervals, intersect, join, total, union
from peakward.traces.table import GpuColumns, GpuKind, Table


def breakdown(table: Table, communication: NDArray[np.bool_]) -> Breakdown:
    """The time of every device; `communication` marks the rows of `table.gpu` that are collectives."""
    devices = tuple(
        _device_time(table.gpu, communication, int(device))
        for device in np.unique(table.gpu.device)
    )
    return Breakdown(
        devices=devices,
        together=_added_up(devices),
        span_ns=span(table.gpu.start_ns, table.gpu.end_ns),
    )


def span(start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Nanoseconds from the first start to the last end; 0 of nothing."""
    return int(end.max() - start.min()) if len(start) else 0


def busy(gpu: GpuColumns, rows: NDArray[np.bool_]) -> Intervals:
    """The time in which at least one of these rows runs."""
    return union(gpu.start_ns[rows], gpu.end_ns[rows])


def _device_time(gpu: GpuColumns, communication: NDArray[np.bool_], device: int) -> DeviceTime:
    here = gpu.device == device
    kernel = here & (gpu.kind == GpuKind.KERNEL)
    is_communication, is_compute = kernel & communication, kernel & ~communication
    moving = here & ~kernel
    compute, collective, memory = (
        busy(gpu, rows) for rows in (is_compute, is_communication, moving)
    )
    busy_ns = total(join(compute, collective, memory))
    return DeviceTime(
        device=device,
        span_ns=span(gpu.start_ns[here], gpu.end_ns[here]),
        busy_ns=busy_ns,
        compute_ns=total(compute),
        communication_ns=total(collective),
        memory_ns=total(memory),
        communication_under_compute_ns=total(intersect(collective, compute)),
        memory_under_compute_ns=total(intersect(memory, compute)),
        exposed_memory_ns=busy_ns - total(join(compute, collective)),
        n_compute=int(is_compute.sum()),
        n_communication=int(is_communication.sum()),
        n_copies=int((here & (gpu.kind == GpuKind.COPY)).sum()),
        n_sets=int((here & (gpu.kind == GpuKind.SET)).sum()),
    )


def _added_up(devices: tuple[DeviceTime, ...]) -> DeviceTime:
    columns = [field for field in DeviceTime.__struct_fields__ if field != "device"]
    sums = {field: sum(getattr(each, field) for each in devices) for field in columns}
    return DeviceTime(device=None, **sums)
