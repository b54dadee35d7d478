"""Where the host waited for the GPU, for how long, and whether the GPU was busy meanwhile."""

import re

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import Waiting
from peakward.traces.breakdown import busy
from peakward.traces.by_name import by_name
from peakward.traces.calls import plain_name
from peakward.traces.host_time import HostTime, host_time
from peakward.traces.intervals import covered
from peakward.traces.nesting import nest
from peakward.traces.table import NONE, HostKind, Indices, Ints, Table

_LINE = re.compile(r"\.py\(\d+\): ")
_OURS, _TORCHS = 2, 1


def waiting(
    table: Table, *, outside: str | None = None, among: NDArray[np.bool_] | None = None
) -> tuple[Waiting, ...]:
    """The places at which the host waited, the longest total first.

    Args:
        table: with the work that it waited for.
        outside: the name of ranges whose work is none of the table's.
        among: which host rows count; None: all.
    """
    host = host_time(table)
    calls = np.flatnonzero(host.waiting if among is None else host.waiting & among)
    calls = calls[~_within(table, calls, outside)]
    around = np.stack([_names(table, rows) for rows in (calls, *_around(table, calls))], axis=1)
    idle = table.host.duration_ns[calls] - _busy_during(table, host, calls)
    places, which = np.unique(around, axis=0, return_inverse=True)
    found = [
        _waiting(table, place, table.host.duration_ns[calls[which == at]], idle[which == at])
        for at, place in enumerate(places.tolist())
    ]
    return tuple(sorted(found, key=lambda each: -each.sum_ns))


def _names(table: Table, rows: Indices | NDArray[np.intp]) -> Ints:
    """The name of each host row; NONE for row NONE."""
    if not len(table.host):
        return np.full(len(rows), NONE, dtype=np.int64)
    return np.where(rows == NONE, NONE, table.host.name[rows]).astype(np.int64)


def _within(table: Table, calls: NDArray[np.intp], name: str | None) -> NDArray[np.bool_]:
    """Mask of the calls that lie in a range of this name on their thread."""
    if name is None or name not in table.names:
        return np.zeros(len(calls), dtype=np.bool_)
    of_name = table.host.name == table.names.index(name)
    rows = np.flatnonzero(of_name & (table.host.kind == HostKind.RANGE))
    threads, starts = table.host.thread[calls], table.host.start_ns[calls]
    inside: NDArray[np.bool_] = nest(table.host, rows).innermost(threads, starts) != NONE
    return inside


def _around(table: Table, calls: NDArray[np.intp]) -> tuple[Indices, Indices, Indices]:
    """The operator, the range and the Python function around each call, or NONE."""
    kind = table.host.kind
    operators, ranges, python = (
        np.flatnonzero(kind == which) for which in (HostKind.OP, HostKind.RANGE, HostKind.PYTHON)
    )
    whose = by_name(table.names, table.host.name[python], _whose_line)
    threads, starts = table.host.thread[calls], table.host.start_ns[calls]
    operator, range_, ours, torchs = (
        nest(table.host, rows).innermost(threads, starts)
        for rows in (operators, ranges, python[whose == _OURS], python[whose == _TORCHS])
    )
    return operator, range_, np.where(ours == NONE, torchs, ours)


def _whose_line(name: str) -> int:
    """Whether a Python function's name has a line, and whether that line is torch's."""
    if not _LINE.search(name):
        return 0
    return _TORCHS if name.startswith("torch/") else _OURS


def _busy_during(table: Table, host: HostTime, calls: NDArray[np.intp]) -> Ints:
    """For each call the nanoseconds in which a GPU ran work of its process."""
    found = np.zeros(len(calls), dtype=np.int64)
    owner, start, end = host.process[calls], host.host.start_ns[calls], host.host.end_ns[calls]
    for process in np.unique(owner):
        own = owner == process
        ran = busy(table.gpu, table.gpu.process == process)
        found[own] = covered(ran, start[own], end[own])
    return found


def _waiting(table: Table, place: list[int], durations: Ints, idle: Ints) -> Waiting:
    call, operator, range_, python = (None if at == NONE else table.names[at] for at in place)
    return Waiting(
        call=plain_name(call or ""),
        operator=operator,
        range=range_,
        python=python,
        n=len(durations),
        sum_ns=int(durations.sum()),
        gpu_idle_ns=int(idle.sum()),
        longest_ns=int(durations.max()),
    )
