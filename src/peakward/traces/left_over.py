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
from peakward.traces.table import NONE, Table


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
    """Work of unknown launch that started before any of known launch on its device."""
    unknown = launch_rows(table) == NONE
    rows = np.zeros(len(unknown), dtype=bool)
    for device in np.unique(table.gpu.device):
        here = table.gpu.device == device
        known = here & ~unknown
        if known.any():
            first_ns = table.gpu.start_ns[known].min()
            rows |= here & unknown & (table.gpu.start_ns < first_ns)
    return rows
