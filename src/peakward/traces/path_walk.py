"""Follows the edges of the critical path backwards, from the end of the steps or of the GPUs' last work."""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from peakward.traces.host_time import HostTime
from peakward.traces.path_edges import releases, work_edges
from peakward.traces.step_spans import Spans
from peakward.traces.table import NONE, Indices, Table


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


class _Place(NamedTuple):
    """The current place of the walk backwards: the end of a work, or an instant of a thread."""

    at: int
    gpu: int = NONE
    thread: int = NONE


def walk(table: Table, launches: Indices, host: HostTime, spans: Spans) -> list[Stretch]:
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

    def __init__(self, table: Table, launches: Indices, host: HostTime, *, begin: int) -> None:
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
