"""Splits a GPU's time into busy and idle: computing, communicating and moving memory.

Communication that no compute hides is listed by kernel, and copies and sets by direction, size and speed.
"""

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import Breakdown, Collective, DeviceTime, Transfers
from peakward.traces.intervals import Intervals, intersect, join, subtract, total, union
from peakward.traces.step_spans import Span, Spans, work_spans
from peakward.traces.table import Direction, GpuColumns, GpuKind, TraceTable, rows_of_each


def breakdown(
    table: TraceTable, communication: NDArray[np.bool_], spans: Spans | None = None
) -> Breakdown:
    """The time of every device.

    Args:
        table: with work of steps, or of a whole file.
        communication: which rows of `table.gpu` are collectives.
        spans: of the steps; None: from the first work of each device to its last.
    """
    spans = work_spans(table.gpu) if spans is None else spans
    rows = rows_of_each(table.gpu.device)
    devices = tuple(
        _device_time(table.gpu, communication, device, rows[device], span)
        for device, span in spans.items()
    )
    return Breakdown(devices=devices, together=_added_up(devices), span_ns=whole_ns(spans))


def whole_ns(spans: Spans) -> int:
    """From the start of the first span to the end of the last; 0 without spans."""
    if not spans:
        return 0
    return max(each.end_ns for each in spans.values()) - min(
        each.start_ns for each in spans.values()
    )


def busy(gpu: GpuColumns, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Intervals:
    """The time in which at least one of these rows runs."""
    return union(gpu.start_ns[rows], gpu.end_ns[rows])


def _device_time(
    gpu: GpuColumns,
    communication: NDArray[np.bool_],
    device: int,
    here: NDArray[np.intp],
    span: Span,
) -> DeviceTime:
    kind = gpu.kind[here]
    kernel = kind == GpuKind.KERNEL
    is_communication = kernel & communication[here]
    is_compute = kernel & ~is_communication
    compute, collective, memory = (
        busy(gpu, here[rows]) for rows in (is_compute, is_communication, ~kernel)
    )
    busy_ns = total(join(compute, collective, memory))
    return DeviceTime(
        device=device,
        span_ns=span.end_ns - span.start_ns,
        busy_ns=busy_ns,
        compute_ns=total(compute),
        communication_ns=total(collective),
        memory_ns=total(memory),
        communication_under_compute_ns=total(intersect(collective, compute)),
        memory_under_compute_ns=total(intersect(memory, compute)),
        exposed_memory_ns=busy_ns - total(join(compute, collective)),
        n_compute=int(is_compute.sum()),
        n_communication=int(is_communication.sum()),
        n_copies=int((kind == GpuKind.COPY).sum()),
        n_sets=int((kind == GpuKind.SET).sum()),
    )


def _added_up(devices: tuple[DeviceTime, ...]) -> DeviceTime:
    columns = [field for field in DeviceTime.__struct_fields__ if field != "device"]
    sums = {field: sum(getattr(each, field) for each in devices) for field in columns}
    return DeviceTime(device=None, **sums)


def collectives(table: TraceTable, communication: NDArray[np.bool_]) -> tuple[Collective, ...]:
    """The collectives, most exposed first. `communication` marks the rows of `table.gpu` that are
    collectives."""
    gpu, kernel = table.gpu, table.gpu.kind == GpuKind.KERNEL
    compute = rows_of_each(gpu.device, np.flatnonzero(kernel & ~communication))
    computing = {device: busy(gpu, rows) for device, rows in compute.items()}
    found = [
        _collective(table, name, rows, computing)
        for name, rows in rows_of_each(gpu.name, np.flatnonzero(kernel & communication)).items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.exposed_ns, -each.sum_ns, each.name)))


def _collective(
    table: TraceTable, name: int, rows: NDArray[np.intp], computing: dict[int, Intervals]
) -> Collective:
    gpu = table.gpu
    united_ns = exposed_ns = 0
    for device, here in rows_of_each(gpu.device, rows).items():
        ran = busy(gpu, here)
        united_ns += total(ran)
        alone = subtract(ran, computing[device]) if device in computing else ran
        exposed_ns += total(alone)
    durations = gpu.duration_ns[rows]
    return Collective(
        name=table.names[name],
        n=len(durations),
        sum_ns=int(durations.sum()),
        united_ns=united_ns,
        exposed_ns=exposed_ns,
        longest_ns=int(durations.max()),
    )


def transfers(table: TraceTable) -> tuple[Transfers, ...]:
    """Copies by direction, then sets; the longest total time first."""
    gpu = table.gpu
    found = [
        _transfers(
            table, direction.name.lower(), (gpu.kind == GpuKind.COPY) & (gpu.direction == direction)
        )
        for direction in Direction
    ]
    found.append(_transfers(table, "set", gpu.kind == GpuKind.SET))
    return tuple(sorted((each for each in found if each.n), key=lambda each: -each.sum_ns))


def _transfers(table: TraceTable, what: str, rows: NDArray[np.bool_]) -> Transfers:
    gpu = table.gpu
    sized = rows & (gpu.n_bytes >= 0)
    n_bytes, sized_ns = int(gpu.n_bytes[sized].sum()), int(gpu.duration_ns[sized].sum())
    return Transfers(
        what=what,
        n=int(rows.sum()),
        n_bytes=n_bytes,
        largest_bytes=int(gpu.n_bytes[sized].max()) if sized.any() else None,
        sum_ns=int(gpu.duration_ns[rows].sum()),
        united_ns=sum(
            total(busy(gpu, here))
            for here in rows_of_each(gpu.device, np.flatnonzero(rows)).values()
        ),
        bytes_per_s=n_bytes * 1e9 / sized_ns if sized_ns else None,
    )
