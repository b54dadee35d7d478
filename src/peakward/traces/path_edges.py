"""The edges of the critical path: what each piece of GPU work waited for, and when host threads were
released.

A trace has no arrows between streams, so some edges are inferred; the docstrings say which.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.traces.calls import LAUNCHES, after_stream_wait
from peakward.traces.host_time import HostTime
from peakward.traces.intervals import Intervals, contains, union
from peakward.traces.launches import call_returns, first_of_launch
from peakward.traces.table import NONE, GpuColumns, HostKind, Indices, Ints, Table


class WorkEdges(NamedTuple):
    """The edges into each row of `table.gpu`."""

    before: Ints
    """The row of `table.gpu` whose end it follows, or NONE. That is the last work to end on its stream. Where
    its launch came right after a stream wait, or it is a later work of a graph, it is the last to end on any
    stream of the process."""
    launched: NDArray[np.bool_]
    """Whether it waited for its launch: the call returned after `before` had ended."""
    returned: Ints
    """The time at which the launch returned, or the work's start where that came first."""


class Releases(NamedTuple):
    """The times at which a thread's chain of host work comes from elsewhere, in order."""

    at: Ints
    gpu: Ints
    """The row of `table.gpu` that a call of the thread, returning at `at`, had waited for; or NONE."""
    thread: Ints
    """Otherwise the thread of the process with the last launch before `at`, where this thread was in no
    operator and no call from then to `at`, and that one is in none at `at`; or NONE."""
    since: Ints
    """The time at which that work, or that launch, ended."""


def work_edges(table: Table, launches: Indices, host: HostTime) -> WorkEdges:
    """The edges into each piece of work. `launches` is the result of `launch_rows`."""
    gpu, known = table.gpu, launches != NONE
    first = first_of_launch(launches)
    before = np.full(len(gpu), NONE, dtype=np.int64)
    for rows in _groups(gpu.process, gpu.device, gpu.stream):
        before[rows] = last_ended(gpu, rows, gpu.start_ns[rows])
    waits = np.zeros(len(gpu), dtype=np.bool_)
    waits[known] = after_stream_wait(host.host, host.kinds)[launches[known]]
    waits |= ~first
    for rows in _groups(gpu.process):
        waiting = rows[waits[rows]]
        before[waiting] = last_ended(gpu, rows, gpu.start_ns[waiting])
    returned = np.minimum(call_returns(host.host, host.kinds, launches), gpu.start_ns)
    ended = gpu.end_ns[before] if len(gpu) else gpu.end_ns
    launched = known & ((first & (returned >= ended)) | (before == NONE))
    return WorkEdges(before, launched, returned)


def _groups(*columns: Ints | Indices) -> list[NDArray[np.intp]]:
    """Groups of the rows that agree in all columns."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, which = np.unique(column, return_inverse=True)
        code = code * len(values) + which
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    return np.split(order, starts[1:]) if len(order) else []


def last_ended(gpu: GpuColumns, rows: NDArray[np.intp], by: Ints) -> Ints:
    """For each instant the one of `rows` that was the last to end by then, or NONE. Rows of no length do not
    count."""
    rows = rows[gpu.duration_ns[rows] > 0]
    rows = rows[np.argsort(gpu.end_ns[rows], kind="stable")]
    at = np.searchsorted(gpu.end_ns[rows], by, side="right") - 1
    return np.where(at < 0, NONE, rows[np.maximum(at, 0)] if len(rows) else NONE)


def releases(table: Table, host: HostTime, thread: int) -> Releases:
    """The releases of a thread in order of time."""
    process = table.threads[thread].process
    of_gpu = _of_gpu(table, host, thread, np.flatnonzero(table.gpu.process == process))
    of_threads = _of_threads(host, thread, process)
    both = [np.concatenate(columns) for columns in zip(of_gpu, of_threads, strict=True)]
    order = np.argsort(both[0], kind="stable")
    return Releases(*(column[order] for column in both))


def _of_gpu(table: Table, host: HostTime, thread: int, rows: NDArray[np.intp]) -> Releases:
    """Calls that waited for work which ended during the call."""
    calls = np.flatnonzero(host.waiting & (table.host.thread == thread))
    at = table.host.end_ns[calls]
    work = last_ended(table.gpu, rows, at)
    ended = table.gpu.end_ns[work] if len(table.gpu) else np.zeros(len(work), dtype=np.int64)
    waited = (work != NONE) & (ended > table.host.start_ns[calls])
    nobody = np.full(int(waited.sum()), NONE, dtype=np.int64)
    return Releases(at[waited], work[waited], nobody, ended[waited])


def _of_threads(host: HostTime, thread: int, process: int) -> Releases:
    """The ends of a thread's inactivity in which another thread of the process launched work."""
    own = _active(host, thread)
    launching = (host.process == process) & (host.host.thread != thread)
    calls = np.flatnonzero(launching & np.isin(host.kinds, LAUNCHES))
    calls = calls[np.argsort(host.host.end_ns[calls], kind="stable")]
    ends, threads = host.host.end_ns[calls], host.host.thread[calls].astype(np.int64)
    last = np.searchsorted(ends, own.start, side="left") - 1
    free_since = np.concatenate(([np.iinfo(np.int64).min], own.end))[:-1]
    found = last >= 0
    found[found] = ends[last[found]] >= free_since[found]
    for other in np.unique(threads[last[found]]).tolist():
        its = np.flatnonzero(found)[threads[last[found]] == other]
        found[its] = ~contains(_active(host, other), own.start[its])
    last = last[found]
    return Releases(own.start[found], np.full(len(last), NONE), threads[last], ends[last])


def _active(host: HostTime, thread: int) -> Intervals:
    """The time in which the thread was in an operator or a call."""
    rows = (host.host.thread == thread) & np.isin(host.host.kind, (HostKind.OP, HostKind.CALL))
    return union(host.host.start_ns[rows], host.host.end_ns[rows])
