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
from peakward.traces.table import NONE, Ints, Table


def without_left_over(table: Table) -> Table:
    """The table without it, and with a sentence on it in `limits`; the table itself where the trace
    marks no steps, so that nothing is said of one step."""
    if not len(step_rows(table)):
        return table
    rows = _left_over(table)
    if not rows.any():
        return table
    duration_ns = table.gpu.duration_ns
    said = (
        f"Left out: {int(rows.sum()):,} pieces of GPU work "
        f"({int(duration_ns[rows].sum()) / max(int(duration_ns.sum()), 1):.1%} of their time) that ran "
        "before all whose launch is in the trace: steps before those that it shows had launched them."
    )
    return replace(restricted(table, ~rows), limits=(*table.limits, said))


def _left_over(table: Table) -> NDArray[np.bool_]:
    """Work of unknown launch that started before any of known launch on its stream, which runs in the order
    of launches; of a stream where none is known, on its device."""
    gpu, unknown = table.gpu, launch_rows(table) == NONE
    on_stream = np.stack([gpu.process.astype(np.int64), gpu.device.astype(np.int64), gpu.stream])
    on_device = on_stream[:2]
    first_ns = _first_known(on_stream, gpu.start_ns, unknown)
    return unknown & (
        gpu.start_ns
        < np.where(first_ns == NONE, _first_known(on_device, gpu.start_ns, unknown), first_ns)
    )


def _first_known(places: Ints, start_ns: Ints, unknown: NDArray[np.bool_]) -> Ints:
    """For each row when the first work of known launch in its place started; NONE where there is none, which
    is before every start."""
    found, of_row = np.unique(places, axis=1, return_inverse=True)
    first_ns = np.full(found.shape[1], np.iinfo(np.int64).max)
    np.minimum.at(first_ns, of_row[~unknown], start_ns[~unknown])
    first_ns[first_ns == np.iinfo(np.int64).max] = NONE
    return first_ns[of_row]
