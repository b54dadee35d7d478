"""What a GPU still had to do when a trace began: work of the steps before those that the trace shows.

torch's profiler begins to record while the host is a step or two ahead of the GPU. What was launched
before then runs in the window, without its launch: of 3 profiled steps of a decoder on an H100 270
pieces of work of 750, which made a step of 38 ms look like one of 59.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from peakward.traces.launches import launch_rows
from peakward.traces.selection import restricted
from peakward.traces.steps import step_rows
from peakward.traces.table import NONE, GpuColumns, Ints, Table

NEVER = np.iinfo(np.int64).max


def without_left_over(table: Table) -> Table:
    """The table from where each device had done it, and with a sentence on it in `limits`; the table itself
    where the trace marks no steps, so that nothing is said of one step."""
    if not len(step_rows(table)):
        return table
    left = _left_over(table.gpu, launch_rows(table) == NONE)
    if not left.any():
        return table
    # Or the time in which a copy of the next batch had run beside it would be idle.
    rows = left | (table.gpu.start_ns < _last_end_ns(table.gpu, left))
    duration_ns = table.gpu.duration_ns
    n_beside = int((rows & ~left).sum())
    beside = f", and {n_beside:,} of later steps that ran beside them" if n_beside else ""
    said = (
        f"Left out: {int(left.sum()):,} pieces of GPU work "
        f"({int(duration_ns[left].sum()) / max(int(duration_ns.sum()), 1):.1%} of the time of all) that "
        f"earlier steps than the trace shows had launched{beside}."
    )
    return replace(restricted(table, ~rows), limits=(*table.limits, said))


def _left_over(gpu: GpuColumns, unknown: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Work of unknown launch that started before any of known launch on its stream, which runs in the order
    of launches; of a stream where none is known, before any on its device."""
    device, stream = _devices(gpu), _streams(gpu)
    first_ns = _least(stream, np.where(unknown, NEVER, gpu.start_ns))
    of_device_ns = _least(device, np.where(unknown, NEVER, gpu.start_ns))
    first_ns = np.where(first_ns == NEVER, of_device_ns, first_ns)
    found: NDArray[np.bool_] = unknown & (first_ns != NEVER) & (gpu.start_ns < first_ns)
    return found


def _last_end_ns(gpu: GpuColumns, left: NDArray[np.bool_]) -> Ints:
    """For each row when its device had done the last of it; before every start where it had none."""
    return -_least(_devices(gpu), np.where(left, -gpu.end_ns, NEVER))


def _devices(gpu: GpuColumns) -> Ints:
    """A number for each row's device, of which each process has its own."""
    places = np.stack([gpu.process, gpu.device])
    return np.unique(places, axis=1, return_inverse=True)[1].reshape(-1)


def _streams(gpu: GpuColumns) -> Ints:
    places = np.stack([_devices(gpu), gpu.stream])
    return np.unique(places, axis=1, return_inverse=True)[1].reshape(-1)


def _least(place: Ints, value: Ints) -> Ints:
    """For each row the least value of its place."""
    least = np.full(int(place.max(initial=0)) + 1, NEVER)
    np.minimum.at(least, place, value)
    return least[place]
