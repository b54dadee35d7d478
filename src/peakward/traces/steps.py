"""The iterations that a trace shows, and the GPU work that each launched."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peakward.traces.marks import named
from peakward.traces.nesting import rows_of
from peakward.traces.ranges import innermost_at, launch_sites
from peakward.traces.table import NONE, HostKind, Indices, Ints, Table

OURS = re.compile(r"peakward::step$")
TORCHS = re.compile(r"ProfilerStep#\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Instances of a step, and which one launched each piece of GPU work."""

    rows: Indices
    """Positions in `Table.host`, by start."""
    start_ns: Ints
    """Of the step on the host: the GPU may run its work later."""
    end_ns: Ints
    step: Indices
    """For each GPU row the position in `rows`; NONE for work launched outside all steps."""

    def __len__(self) -> int:
        return len(self.rows)


def step_rows(table: Table) -> NDArray[np.int64]:
    """Positions in `host` of the steps: Peakward's where there are any, else torch's ProfilerStep."""
    rows = rows_of(table.host, (HostKind.RANGE, HostKind.OP))
    for pattern in (OURS, TORCHS):
        steps = rows[named(table, pattern)[table.host.name[rows]]]
        if len(steps):
            return steps
    return rows[:0]


def steps(table: Table, launches: Indices) -> Steps:
    """The steps of a trace; none where nobody named any."""
    rows = step_rows(table)
    row = innermost_at(table, launch_sites(table, launches), rows)
    step = np.where(row == NONE, NONE, np.searchsorted(rows, row))
    return Steps(
        rows=rows.astype(np.int32),
        start_ns=table.host.start_ns[rows],
        end_ns=table.host.end_ns[rows],
        step=step.astype(np.int32),
    )


def busy_ns(table: Table, found: Steps, device: int | None = None) -> Ints:
    """By step, how long its work kept the GPU busy: its intervals united over streams.

    Of one device, or of all united: time when several are busy counts once.
    """
    gpu = table.gpu
    rows = np.flatnonzero(found.step != NONE)
    if device is not None:
        rows = rows[gpu.device[rows] == device]
    rows = rows[np.argsort(found.step[rows], kind="stable")]
    bounds = np.searchsorted(found.step[rows], np.arange(1, len(found)))
    return np.array(
        [_united(gpu.start_ns[of], gpu.end_ns[of]) for of in np.split(rows, bounds)][: len(found)],
        dtype=np.int64,
    )


def _united(start: Ints, end: Ints) -> int:
    """Length of the union of intervals sorted by start."""
    if not len(start):
        return 0
    reach = np.maximum.accumulate(end)
    gaps = np.maximum(start[1:] - reach[:-1], 0).sum()
    return int(reach[-1] - start[0] - gaps)
