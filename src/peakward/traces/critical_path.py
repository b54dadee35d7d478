"""The critical path: the chain of work on GPUs and host that determined the total time.

It is followed backwards from the end of a GPU's last work, or of the last step where the host ends it. A work
came right after its launch or right after the work before it, whichever ended later. A thread of the host
continued from its own earlier work, back to the last call in which it had waited for a GPU, and from there to
that GPU's work. Where it had been in no operator and no call, it continued from the last launch by another
thread of its process. Only shorter work on the path makes the whole shorter.

A trace has no arrows between streams: it shows the wait of one stream for another only as a call, so the work
waited for is assumed to be the last that ended. Waits between processes, and of collectives for other ranks,
are not in one trace.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import CriticalPath, PathShare
from peakward.traces.calls import LAUNCHES, after_stream_wait
from peakward.traces.host_time import HostTime, host_time
from peakward.traces.intervals import Intervals, contains, self_time, union
from peakward.traces.launches import call_returns, first_of_launch
from peakward.traces.step_spans import Spans, work_spans
from peakward.traces.table import NONE, GpuColumns, GpuKind, HostKind, Indices, Ints, TraceTable


class PathKind(StrEnum):
    """The kind of a part of the path.

    A thread's time belongs to its innermost operator, call or range. `HOST` is time in a range or in nothing:
    mostly the program's own Python. The gaps are those of `Stretch`.
    """

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    OPERATOR = "operator"
    CALL = "call"
    HOST = "host"
    LAUNCH_LATENCY = "launch_latency"
    QUEUED = "queued"
    SYNCHRONISATION = "synchronisation"
    UNKNOWN = "unknown"


_HOST_KINDS = {
    HostKind.OP: PathKind.OPERATOR,
    HostKind.CALL: PathKind.CALL,
    HostKind.RANGE: PathKind.HOST,
}


def critical_path(
    table: TraceTable,
    launches: Indices,
    communication: NDArray[np.bool_],
    spans: Spans | None = None,
) -> CriticalPath:
    """The critical path through the steps or the whole trace. `launches` is the result of `launch_rows`,
    `communication` marks the rows of `table.gpu` that are collectives, and `spans` are as for `breakdown`."""
    host = host_time(table)
    path = walk(table, launches, host, work_spans(table.gpu) if spans is None else spans)
    shares = _added_up([*_off_host(table, communication, path), *_of_host(table, path)])
    return CriticalPath(
        span_ns=sum(each.end - each.start for each in path),
        by_kind_ns={
            kind.value: sum(each.ns for each in shares if each.kind == kind) for kind in PathKind
        },
        shares=tuple(sorted(shares, key=lambda each: -each.ns)),
    )


def _added_up(shares: Iterable[PathShare]) -> list[PathShare]:
    by_name: dict[tuple[str, str | None], list[PathShare]] = defaultdict(list)
    for each in shares:
        by_name[each.kind, each.name].append(each)
    return [
        PathShare(
            kind=kind, name=name, n=sum(each.n for each in some), ns=sum(each.ns for each in some)
        )
        for (kind, name), some in by_name.items()
    ]


class Stretch(NamedTuple):
    """A part of the path, from `start` to `end` in ns: work of a GPU, time of a host thread, or a gap
    between."""

    start: int
    end: int
    gpu: int = NONE
    """The row of `table.gpu` that ran."""
    thread: int = NONE
    """The thread."""
    gap: str | None = None
    """"launch_latency": from a launch's return to its work's start. "queued": from the end of one work to the
    start of the next. "synchronisation": from the end of a work to the return of the call that waited for it.
    "unknown": nothing in the trace comes before."""


def _off_host(
    table: TraceTable, communication: NDArray[np.bool_], path: list[Stretch]
) -> Iterator[PathShare]:
    """Work of GPUs, and gaps."""
    for each in path:
        ns = each.end - each.start
        if each.gap is not None:
            yield PathShare(kind=PathKind(each.gap), name=None, n=1, ns=ns)
        elif each.gpu != NONE:
            name = table.names[table.gpu.name[each.gpu]]
            kernel = table.gpu.kind[each.gpu] == GpuKind.KERNEL
            kind = PathKind.COMMUNICATION if communication[each.gpu] else PathKind.COMPUTE
            yield PathShare(kind=kind if kernel else PathKind.MEMORY, name=name, n=1, ns=ns)


def _of_host(table: TraceTable, path: list[Stretch]) -> Iterator[PathShare]:
    """The threads' time, by the innermost operator, call or range."""
    relevant = np.isin(table.host.kind, list(_HOST_KINDS))
    for thread in {each.thread for each in path} - {NONE}:
        times = np.array([(each.start, each.end) for each in path if each.thread == thread])
        rows = np.flatnonzero(relevant & (table.host.thread == thread))
        rows, ns = self_time(table.host, rows, union(*times.T))
        some = rows != NONE
        if not some.all():
            outside = int(ns[~some].sum())
            yield PathShare(kind=PathKind.HOST, name=None, n=len(times), ns=outside)
        yield from _by_name(table, rows[some], ns[some])


def _by_name(table: TraceTable, rows: NDArray[np.intp], ns: Ints) -> Iterator[PathShare]:
    """Host rows and their time, summed by kind and name."""
    n_names = len(table.names)
    code = table.host.kind[rows].astype(np.int64) * n_names + table.host.name[rows]
    codes, which, counts = np.unique(code, return_inverse=True, return_counts=True)
    sums = np.bincount(which, weights=ns, minlength=len(codes)).astype(np.int64)
    for at, n, total in zip(codes.tolist(), counts.tolist(), sums.tolist(), strict=True):
        kind, name = divmod(at, n_names)
        yield PathShare(kind=_HOST_KINDS[HostKind(kind)], name=table.names[name], n=n, ns=total)


class _Place(NamedTuple):
    """The current place of the walk backwards: the end of a work, or an instant of a thread."""

    at: int
    gpu: int = NONE
    thread: int = NONE


def walk(table: TraceTable, launches: Indices, host: HostTime, spans: Spans) -> list[Stretch]:
    """The path, its last stretch first; empty without GPU work.

    Each stretch ends where the one before it in time begins, from the end of the last span back to the start
    of the first. Where no work ends there, the walk begins on the thread that marks the steps.
    """
    if not len(table.gpu):
        return []
    steps = _Steps(table, launches, host, begin=min(each.start_ns for each in spans.values()))
    last = int(np.argmax(table.gpu.end_ns))
    end = max(spans.values(), key=lambda each: each.end_ns)
    place, path = _Place(int(table.gpu.end_ns[last]), gpu=last), []
    if end.end_ns > place.at:
        place = _Place(end.end_ns, thread=end.thread)
    while place.at > steps.begin:
        stretches, place = steps.from_gpu(place) if place.gpu != NONE else steps.from_host(place)
        path += stretches
    clipped = (each._replace(start=max(each.start, steps.begin)) for each in path)
    return [each for each in clipped if each.end > each.start]


class _Steps:
    """One step backwards. Columns are lists here, because a walk reads them one value at a time."""

    def __init__(self, table: TraceTable, launches: Indices, host: HostTime, *, begin: int) -> None:
        self._table, self._host = table, host
        self.begin = begin
        self._start, self._end = table.gpu.start_ns.tolist(), table.gpu.end_ns.tolist()
        edges = work_edges(table, launches, host)
        self._before = edges.before.tolist()
        self._launched, self._returned = edges.launched.tolist(), edges.returned.tolist()
        self._call, self._thread_of = launches.tolist(), table.host.thread
        self._releases: dict[int, tuple[list[int], ...]] = {}

    def from_gpu(self, place: _Place) -> tuple[list[Stretch], _Place]:
        row, start = place.gpu, self._start[place.gpu]
        ran, before = Stretch(start, place.at, gpu=row), self._before[row]
        if self._launched[row]:
            at = self._returned[row]
            thread = int(self._thread_of[self._call[row]])
            return [ran, Stretch(at, start, gap="launch_latency")], _Place(at, thread=thread)
        if before != NONE:
            at = self._end[before]
            return [ran, Stretch(at, start, gap="queued")], _Place(at, gpu=before)
        return [ran, Stretch(self.begin, start, gap="unknown")], _Place(self.begin)

    def from_host(self, place: _Place) -> tuple[list[Stretch], _Place]:
        thread = place.thread
        at, gpu, others, since = self._releases_of(thread)
        which = bisect_right(at, place.at) - 1
        if which < 0:
            return [Stretch(self.begin, place.at, thread=thread)], _Place(self.begin)
        worked, left = Stretch(at[which], place.at, thread=thread), since[which]
        if gpu[which] != NONE:
            waited = Stretch(left, at[which], gap="synchronisation")
            return [worked, waited], _Place(left, gpu=gpu[which])
        free = Stretch(left, at[which], thread=thread)
        return [worked, free], _Place(left, thread=others[which])

    def _releases_of(self, thread: int) -> tuple[list[int], ...]:
        if thread not in self._releases:
            found = releases(self._table, self._host, thread)
            self._releases[thread] = tuple(column.tolist() for column in found)
        return self._releases[thread]


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


def work_edges(table: TraceTable, launches: Indices, host: HostTime) -> WorkEdges:
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


def releases(table: TraceTable, host: HostTime, thread: int) -> Releases:
    """The releases of a thread in order of time."""
    process = table.threads[thread].process
    of_gpu = _of_gpu(table, host, thread, np.flatnonzero(table.gpu.process == process))
    of_threads = _of_threads(host, thread, process)
    both = [np.concatenate(columns) for columns in zip(of_gpu, of_threads, strict=True)]
    order = np.argsort(both[0], kind="stable")
    return Releases(*(column[order] for column in both))


def _of_gpu(table: TraceTable, host: HostTime, thread: int, rows: NDArray[np.intp]) -> Releases:
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
