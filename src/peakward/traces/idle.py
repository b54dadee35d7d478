"""The idle time of each GPU by cause: each gap is split into pieces that add up to it.

`idle_causes` defines the causes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import DeviceIdle, Idle, IdleCall
from peakward.traces.breakdown import busy
from peakward.traces.calls import CallKind, after_stream_wait, rows_by_call
from peakward.traces.host_time import HostTime, host_time
from peakward.traces.idle_causes import UNSEEN_NS, IdleCause
from peakward.traces.intervals import Intervals, contains, covered, gaps, join, subtract, union
from peakward.traces.launches import call_returns, first_of_launch
from peakward.traces.step_spans import Span, Spans, work_spans
from peakward.traces.table import NONE, Codes, GpuColumns, Indices, Ints, TraceTable, rows_of_each

N_CALLS = 3
"""The number of calls kept for each cause."""
LEAST_OF_GAPS = 0.1
"""The smallest share of a cause's gaps. A call with less of their time explains little."""


def idle(table: TraceTable, launches: Indices, spans: Spans | None = None) -> Idle:
    """The idle time of each device by cause. `launches` is the result of `launch_rows`, and `spans` are as
    for `breakdown`."""
    spans = work_spans(table.gpu) if spans is None else spans
    host = host_time(table)
    found = idle_gaps(table, launches, host, spans)
    devices = tuple(_device_idle(device, each) for device, each in found.items())
    return Idle(
        devices=devices, together=_added_up(devices), calls=_calls(table, list(found.values()))
    )


class Gaps(NamedTuple):
    """One row for each gap of one device, in order of time."""

    start_ns: Ints
    end_ns: Ints
    next_work: Indices
    """The row of `table.gpu` that ends the gap; NONE for the gap after the last work."""
    pieces_ns: Ints
    """A column for each IdleCause. Each row adds up to its gap's length."""


def _calls(table: TraceTable, found: Sequence[Gaps]) -> tuple[IdleCall, ...]:
    """For each cause the calls that took most of its gaps."""
    if not found:
        return ()
    made = [
        IdleCall(cause=cause.name.lower(), call=name, ns=int(ns.sum()), longest_ns=int(ns.max()))
        for name, rows in rows_by_call(table).items()
        for cause, ns in _in_gaps(union(table.host.start_ns[rows], table.host.end_ns[rows]), found)
    ]
    made.sort(key=lambda each: (-each.ns, each.call))
    by_cause: dict[str, list[IdleCall]] = {each.cause: [] for each in made}
    for each in made:
        by_cause[each.cause].append(each)
    kept = [each for some in by_cause.values() for each in some[:N_CALLS]]
    return tuple(sorted(kept, key=lambda each: (-each.ns, each.call)))


def _in_gaps(of: Intervals, found: Sequence[Gaps]) -> Iterator[tuple[IdleCause, Ints]]:
    """For each cause, the nanoseconds that its gaps share with these intervals. A gap counts for the cause of
    most of its time; causes with too small a share are left out."""
    ns = np.concatenate([covered(of, each.start_ns, each.end_ns) for each in found])
    pieces_ns = np.concatenate([each.pieces_ns for each in found])
    cause = pieces_ns.argmax(axis=1)
    for each in np.unique(cause[ns > 0]).tolist():
        if ns[cause == each].sum() >= LEAST_OF_GAPS * pieces_ns[cause == each].sum():
            yield IdleCause(each), ns[cause == each]


def _device_idle(device: int, found: Gaps) -> DeviceIdle:
    lengths = found.end_ns - found.start_ns
    sums = found.pieces_ns.sum(axis=0)
    return DeviceIdle(
        device=device,
        n_gaps=len(lengths),
        idle_ns=int(lengths.sum()),
        by_cause_ns={cause.name.lower(): int(sums[cause]) for cause in IdleCause},
        longest_ns=int(lengths.max(initial=0)),
    )


def _added_up(devices: tuple[DeviceIdle, ...]) -> DeviceIdle:
    return DeviceIdle(
        device=None,
        n_gaps=sum(each.n_gaps for each in devices),
        idle_ns=sum(each.idle_ns for each in devices),
        by_cause_ns={
            cause: sum(each.by_cause_ns[cause] for each in devices)
            for cause in (cause.name.lower() for cause in IdleCause)
        },
        longest_ns=max((each.longest_ns for each in devices), default=0),
    )


class _Whole(NamedTuple):
    """The inputs that the gaps of all devices share. Each column ends with an entry for a row of NONE."""

    table: TraceTable
    host: HostTime
    launches: Ints
    first: NDArray[np.bool_]
    """Whether a row of GPU work is the first of its launch."""
    stream: Ints
    """The stream of a row of GPU work."""
    thread: Ints
    """The thread of a call."""
    kinds: Codes
    """The CallKind of a call."""
    after_wait: NDArray[np.bool_]
    """Whether a call launches work after a stream wait."""
    ran: Intervals
    """The time in which any device ran: in a gap of one device, another one."""


class _Neighbours(NamedTuple):
    """The work around gaps."""

    next_work: NDArray[np.intp]
    work_before: NDArray[np.intp]
    """Rows of `table.gpu`, or NONE."""
    marking: int
    """The thread that marks the steps."""


class _Judged(NamedTuple):
    """The gaps whose next work has its launch in the trace, and the gap after the last work."""

    start: Ints
    end: Ints
    returned: Ints
    """The time at which the launch of the next work returned, cut to the gap."""
    thread: Ints
    """The thread that launched the next work; after the last work, the thread that marks the steps."""
    thread_before: Ints
    """The thread that launched the work before the gap; `thread` where that is unknown."""
    process: Ints
    waited: Ints
    """The nanoseconds from `returned` on in which the next work waited for another device."""
    remainder: Ints
    """The IdleCause of the remaining nanoseconds from `returned` on."""

    def of(self, which: NDArray[np.bool_]) -> "_Judged":
        """These gaps only."""
        return _Judged(*(column[which] for column in self))


def idle_gaps(
    table: TraceTable, launches: Indices, host: HostTime, spans: Spans
) -> dict[int, Gaps]:
    """The gaps of every device of `spans`, all of which have work. `launches` is the result of
    `launch_rows`."""
    whole = _Whole(
        table=table,
        host=host,
        launches=np.append(launches, NONE).astype(np.int64),
        first=np.append(first_of_launch(launches), False),
        stream=np.append(table.gpu.stream, NONE),
        thread=np.append(host.host.thread, NONE).astype(np.int64),
        kinds=np.append(host.kinds, CallKind.OTHER).astype(np.uint8),
        after_wait=np.append(after_stream_wait(host.host, host.kinds), False),
        ran=busy(table.gpu, np.arange(len(table.gpu))),
    )
    rows = rows_of_each(table.gpu.device)
    return {device: _of_device(whole, rows[device], span) for device, span in spans.items()}


def _of_device(whole: _Whole, here: NDArray[np.intp], span: Span) -> Gaps:
    gpu, launches = whole.table.gpu, whole.launches
    found = gaps(busy(gpu, here), span.start_ns, span.end_ns)
    next_work, work_before = _neighbours(gpu, launches, here, found)
    pieces = np.zeros((len(next_work), len(IdleCause)), dtype=np.int64)
    known = (next_work == NONE) | (launches[next_work] != NONE)
    pieces[~known, IdleCause.UNKNOWN] = (found.end - found.start)[~known]
    of_known = Intervals(found.start[known], found.end[known])
    neighbours = _Neighbours(next_work[known], work_before[known], span.thread)
    judged = _judged(whole, of_known, neighbours)
    pieces[known] = _pieces(judged, whole.host)
    return Gaps(found.start, found.end, next_work.astype(np.int32), pieces)


def _neighbours(
    gpu: GpuColumns, launches: Ints, here: NDArray[np.intp], of: Intervals
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each gap the GPU rows that end it and precede it, or NONE."""
    known_first = here[np.lexsort((launches[here] == NONE, gpu.start_ns[here]))]
    after = np.searchsorted(gpu.start_ns[known_first], of.end, side="left")
    by_end = here[np.lexsort((launches[here] != NONE, gpu.end_ns[here]))]
    before = np.searchsorted(gpu.end_ns[by_end], of.start, side="right") - 1
    return np.append(known_first, NONE)[after], np.append(by_end, NONE)[before]


def _judged(whole: _Whole, of: Intervals, around: _Neighbours) -> _Judged:
    host, (next_work, work_before, marking) = whole.host, around
    is_last, call = next_work == NONE, whole.launches[next_work]
    call_before, first = whole.launches[work_before], whole.first[next_work]
    returned = np.clip(call_returns(host.host, host.kinds, call), of.start, of.end)
    returned = np.where(first, returned, of.start)
    returned = np.where(is_last, of.end, returned)
    waits = first & whole.after_wait[call]
    waited = np.zeros(len(waits), dtype=np.int64)
    if waits.any():
        waited[waits] = covered(whole.ran, returned[waits], of.end[waits])
    other_stream = _ended_elsewhere(whole.stream, next_work, work_before)
    remainder = np.where(returned == of.start, IdleCause.QUEUED, IdleCause.LAUNCH_LATENCY)
    remainder[waits & other_stream] = IdleCause.STREAM_WAIT
    remainder[first & (whole.kinds[call] == CallKind.GRAPH)] = IdleCause.GRAPH_START
    remainder[of.end - returned - waited > UNSEEN_NS] = IdleCause.UNSEEN
    launching = np.where(is_last, marking, whole.thread[call])
    return _Judged(
        start=of.start,
        end=of.end,
        returned=returned,
        thread=launching,
        thread_before=np.where(call_before == NONE, launching, whole.thread[call_before]),
        process=whole.table.process_of_thread[launching].astype(np.int64),
        waited=waited,
        remainder=remainder,
    )


def _ended_elsewhere(
    stream: Ints, next_work: NDArray[np.intp], work_before: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Whether the work before the gap is on another stream than the next work."""
    found: NDArray[np.bool_] = (
        (work_before != NONE) & (next_work != NONE) & (stream[work_before] != stream[next_work])
    )
    return found


def _pieces(judged: _Judged, host: HostTime) -> Ints:
    pieces = np.zeros((len(judged.start), len(IdleCause)), dtype=np.int64)
    n_threads = int(max(host.host.thread.max(initial=0), judged.thread.max(initial=0))) + 1
    pairs = judged.thread * n_threads + judged.thread_before
    for pair in np.unique(pairs).tolist():
        which = pairs == pair
        pieces[which] = _pieces_of(judged.of(which), host, divmod(pair, n_threads))
    return pieces


def _pieces_of(judged: _Judged, host: HostTime, threads: tuple[int, int]) -> Ints:
    """The pieces of gaps that share the same two threads."""
    start, returned = judged.start, judged.returned
    pieces = np.zeros((len(start), len(IdleCause)), dtype=np.int64)
    profiles = host.profiles(int(judged.process[0]))
    loads, waits = host.loads(threads), host.waits(threads)
    pieces[:, IdleCause.PROFILER] = covered(profiles, start, returned)
    pieces[:, IdleCause.DATA_LOADING] = covered(subtract(loads, profiles), start, returned)
    waits_alone = subtract(waits, join(profiles, loads))
    pieces[:, IdleCause.SYNCHRONISATION] = covered(waits_alone, start, returned)
    rest = returned - start - pieces.sum(axis=1)
    ran_dry = contains(waits, start)
    pieces[:, IdleCause.AFTER_SYNCHRONISATION] = np.where(ran_dry, rest, 0)
    pieces[:, IdleCause.HOST_BOUND] = np.where(ran_dry, 0, rest)
    pieces[:, IdleCause.STREAM_WAIT] = judged.waited
    pieces[np.arange(len(start)), judged.remainder] += judged.end - returned - judged.waited
    return pieces
