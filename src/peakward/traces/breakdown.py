"""Splits a GPU's time into busy and idle, computing, communicating and moving memory."""

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import Breakdown, DeviceTime
from peakward.traces.intervals import Intervals, intersect, join, total, union
from peakward.traces.selection import rows_of_each
from peakward.traces.step_spans import Span, Spans, work_spans
from peakward.traces.table import GpuColumns, GpuKind, Table


def breakdown(
    table: Table, communication: NDArray[np.bool_], spans: Spans | None = None
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
