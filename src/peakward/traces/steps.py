"""The iterations that a trace marks."""

import re

import numpy as np
from numpy.typing import NDArray

from peakward.traces.marks import named, processes_of
from peakward.traces.nesting import rows_of
from peakward.traces.table import HostKind, Table

OURS = re.compile(r"peakward::step$")
TORCHS = re.compile(r"ProfilerStep#\d+$")


def step_rows(table: Table) -> NDArray[np.int64]:
    """Positions in `host` of the marked steps: Peakward's where there are any, else torch's ProfilerStep."""
    rows = rows_of(table.host, (HostKind.RANGE, HostKind.OP))
    for pattern in (OURS, TORCHS):
        steps = rows[named(table, rows, pattern)]
        if len(steps):
            return steps
    return rows[:0]


def begun_in_steps(table: Table) -> NDArray[np.bool_]:
    """Mask of the host rows that began between the first mark and the end of the last."""
    marks = step_rows(table)
    start, end = table.host.start_ns[marks].min(), table.host.end_ns[marks].max()
    found: NDArray[np.bool_] = (table.host.start_ns >= start) & (table.host.start_ns < end)
    return found


def n_steps(table: Table) -> int:
    """The number of steps. If several processes mark steps, the largest number counts."""
    _, numbers = np.unique(processes_of(table)[step_rows(table)], return_counts=True)
    return int(numbers.max(initial=0))
