"""The time of the host's threads, sorted by its effect on a waiting GPU."""

import re
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.traces.calls import WAITS, by_name, call_kinds
from peakward.traces.intervals import Intervals, union
from peakward.traces.ranges import processes_of
from peakward.traces.table import Codes, HostColumns, HostKind, Indices, TraceTable

Mask = NDArray[np.bool_]

_LOADING = {
    HostKind.OP: re.compile(r"data[ _]?load", re.IGNORECASE),
    HostKind.RANGE: re.compile(r"data[ _]?load", re.IGNORECASE),
    HostKind.PYTHON: re.compile(r"dataloader\.py\(\d+\): __next__$"),
}


class HostTime(NamedTuple):
    """Masks of `table.host` for each kind of row."""

    host: HostColumns
    kinds: Codes
    """The CallKind of each row."""
    process: Indices
    """The process of each row."""
    waiting: Mask
    """Calls that block the host until the GPU has made progress (`calls.WAITS`)."""
    loading: Mask
    """Operators and ranges whose name holds "data load", "data_load" or "dataload" in any case, as torch's
    `enumerate(DataLoader)#…__next__` does, and the Python of torch's `__next__` itself."""
    profiling: Mask
    """Time that the profiler itself took."""
    foreign: Mask
    """Rows of processes that made no call: torch's profiler books its own time on such a process."""

    def waits(self, threads: Iterable[int]) -> Intervals:
        """The time in which one of the threads was in a waiting call."""
        return self._united(self.waiting, threads)

    def loads(self, threads: Iterable[int]) -> Intervals:
        """The time in which one of the threads waited for the next batch of data."""
        return self._united(self.loading, threads)

    def profiles(self, process: int) -> Intervals:
        """The time that the profiler took from the process, or from no particular process."""
        rows = self.profiling & ((self.process == process) | self.foreign)
        return union(self.host.start_ns[rows], self.host.end_ns[rows])

    def _united(self, which: Mask, threads: Iterable[int]) -> Intervals:
        rows = np.flatnonzero(which)
        rows = rows[np.isin(self.host.thread[rows], list(threads))]
        return union(self.host.start_ns[rows], self.host.end_ns[rows])


def host_time(table: TraceTable) -> HostTime:
    """Classify every host row."""
    host = table.host
    process = processes_of(table)
    callers = np.unique(process[host.kind == HostKind.CALL])
    kinds = call_kinds(table)
    return HostTime(
        host=host,
        kinds=kinds,
        process=process,
        waiting=np.isin(kinds, WAITS),
        loading=_loading(table),
        profiling=np.equal(host.kind, HostKind.OVERHEAD),
        foreign=~np.isin(process, callers),
    )


def _loading(table: TraceTable) -> Mask:
    found = np.zeros(len(table.host), dtype=np.bool_)
    for kind, pattern in _LOADING.items():
        rows = np.flatnonzero(table.host.kind == kind)
        found[rows] = by_name(table.names, table.host.name[rows], partial(_matches, pattern))
    return found


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None
