"""The iterations that a trace shows."""

import re

import numpy as np
from numpy.typing import NDArray

from peakward.traces.marks import named
from peakward.traces.nesting import rows_of
from peakward.traces.table import HostKind, Table

OURS = re.compile(r"peakward::step$")
TORCHS = re.compile(r"ProfilerStep#\d+$")


def step_rows(table: Table) -> NDArray[np.int64]:
    """Positions in `host` of the steps: Peakward's where there are any, else torch's ProfilerStep."""
    rows = rows_of(table.host, (HostKind.RANGE, HostKind.OP))
    for pattern in (OURS, TORCHS):
        steps = rows[named(table, pattern)[table.host.name[rows]]]
        if len(steps):
            return steps
    return rows[:0]
