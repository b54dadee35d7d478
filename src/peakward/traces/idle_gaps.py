"""The gaps in a GPU's busy time, each split by cause (`idle_causes`) into pieces that sum to it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.traces.breakdown import busy
from peakward.traces.calls import CallKind, after_stream_wait
from peakward.traces.host_time import HostTime
from peakward.traces.idle_causes import UNSEEN_NS, IdleCause
from peakward.traces.intervals import Intervals, contains, covered, gaps, join, subtract
from peakward.traces.launches import call_returns, first_of_launch
from peakward.traces.table import NONE, GpuColumns, Indices, Ints, Table


class Gaps(NamedTuple):
    """One row for each gap of one device, in order of time."""

    start_ns: Ints
    end_ns: Ints
    next_work: Indices
    """Row of `table.gpu`."""
    pieces_ns: Ints
    """A column for each IdleCause; each row sums to its gap's length."""


class _Launched(NamedTuple):
    """Gaps whose next work has its launch in the trace."""

    start: Ints
    end: Ints
    returned: Ints
    """Not before the gap, nor after it."""
    thread: Ints
    thread_before: Ints
    """That launched the work before the gap; `thread` where that is unknown."""
    process: Ints
    remainder: Ints
    """The IdleCause from `returned` on."""

    def of(self, which: NDArray[np.bool_]) -> "_Launched":
        """Some of the gaps."""
        return _Launched(*(column[which] for column in self))


def idle_gaps(table: Table, launches: Indices, host: HostTime, device: int) -> Gaps:
    """The gaps of a device that has work; `launches` is what `launch_rows` gives."""
    gpu, here = table.gpu, table.gpu.device == device
    start, end = gpu.start_ns[here].min(), gpu.end_ns[here].max()
    found = gaps(busy(gpu, here), int(start), int(end))
    next_work, work_before = _neighbours(gpu, launches, np.flatnonzero(here), found)
    pieces = np.zeros((len(next_work), len(IdleCause)), dtype=np.int64)
    known = launches[next_work] != NONE
    pieces[~known, IdleCause.UNKNOWN] = (found.end - found.start)[~known]
    of_known = Intervals(found.start[known], found.end[known])
    first = first_of_launch(launches)[next_work[known]]
    calls = launches[next_work[known]], launches[work_before[known]]
    pieces[known] = _pieces(_launched(host, of_known, *calls, first), host)
    return Gaps(found.start, found.end, next_work.astype(np.int32), pieces)


def _neighbours(
    gpu: GpuColumns, launches: Indices, here: NDArray[np.intp], of: Intervals
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The GPU rows that end each gap and that it follows."""
    known_first = here[np.lexsort((launches[here] == NONE, gpu.start_ns[here]))]
    next_work = known_first[np.searchsorted(gpu.start_ns[known_first], of.end, side="left")]
    by_end = here[np.lexsort((launches[here] != NONE, gpu.end_ns[here]))]
    before = np.searchsorted(gpu.end_ns[by_end], of.start, side="right") - 1
    return next_work, by_end[before]


def _launched(
    host: HostTime, of: Intervals, call: Indices, call_before: Indices, first: NDArray[np.bool_]
) -> _Launched:
    returned = np.clip(call_returns(host.host, host.kinds, call), of.start, of.end)
    returned = np.where(first, returned, of.start)
    queued = returned == of.start
    remainder = np.where(queued, IdleCause.QUEUED, IdleCause.LAUNCH_LATENCY)
    remainder[of.end - returned > UNSEEN_NS] = IdleCause.UNSEEN
    remainder[first & after_stream_wait(host.host, host.kinds)[call]] = IdleCause.STREAM_WAIT
    remainder[first & (host.kinds[call] == CallKind.GRAPH)] = IdleCause.GRAPH_START
    thread = host.host.thread.astype(np.int64)
    return _Launched(
        start=of.start,
        end=of.end,
        returned=returned,
        thread=thread[call],
        thread_before=thread[np.where(call_before == NONE, call, call_before)],
        process=host.process[call].astype(np.int64),
        remainder=remainder,
    )


def _pieces(launched: _Launched, host: HostTime) -> Ints:
    pieces = np.zeros((len(launched.start), len(IdleCause)), dtype=np.int64)
    n_threads = int(host.host.thread.max(initial=0)) + 1
    pairs = launched.thread * n_threads + launched.thread_before
    for pair in np.unique(pairs).tolist():
        which = pairs == pair
        pieces[which] = _pieces_of(launched.of(which), host, divmod(pair, n_threads))
    return pieces


def _pieces_of(launched: _Launched, host: HostTime, threads: tuple[int, int]) -> Ints:
    """The pieces of gaps that the same threads are concerned with."""
    start, returned = launched.start, launched.returned
    pieces = np.zeros((len(start), len(IdleCause)), dtype=np.int64)
    profiles = host.profiles(int(launched.process[0]))
    loads, waits = host.loads(threads), host.waits(threads)
    pieces[:, IdleCause.PROFILER] = covered(profiles, start, returned)
    pieces[:, IdleCause.DATA_LOADING] = covered(subtract(loads, profiles), start, returned)
    waits_alone = subtract(waits, join(profiles, loads))
    pieces[:, IdleCause.SYNCHRONISATION] = covered(waits_alone, start, returned)
    rest = returned - start - pieces.sum(axis=1)
    ran_dry = contains(waits, start)
    pieces[:, IdleCause.AFTER_SYNCHRONISATION] = np.where(ran_dry, rest, 0)
    pieces[:, IdleCause.HOST_BOUND] = np.where(ran_dry, 0, rest)
    pieces[np.arange(len(start)), launched.remainder] = launched.end - returned
    return pieces
