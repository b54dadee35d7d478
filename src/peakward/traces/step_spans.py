"""The steps that a trace marks: their GPU work, and the span of each device's steps.

A step goes from mark to mark, including the host's time before its first and after its last GPU work. Where
the host runs ahead, it goes from the completion of the last step's work to that of its own. So a device's
steps begin at the first mark, or later when the work of earlier steps is done. They end at the end of the
last mark, or later when the work that they launched is done.

torch's profiler begins to record while the host is a step or two ahead of the GPU. Earlier launched work then
runs inside the window without its launch: for 3 profiled steps of a decoder on an H100 that was 270 of 750
pieces of work, which made a step of 38 ms look like one of 59.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.traces.calls import call_kinds
from peakward.traces.host_work import HOST, is_of_host, operator_rows
from peakward.traces.idle_causes import UNSEEN_NS
from peakward.traces.intervals import rows_of
from peakward.traces.launches import call_returns, launch_rows
from peakward.traces.ranges import named, processes_of
from peakward.traces.table import (
    NONE,
    GpuColumns,
    HostKind,
    Indices,
    Ints,
    TraceTable,
    restricted,
    rows_of_each,
)

NEVER = np.iinfo(np.int64).max
Mask = NDArray[np.bool_]


class Span(NamedTuple):
    """The span of one device."""

    start_ns: int
    end_ns: int
    thread: int = NONE
    """The thread that marks the steps; NONE where no step is marked."""


Spans = dict[int, Span]
"""Spans by device."""


class Steps(NamedTuple):
    """The GPU work of the marked steps, and their span on each device."""

    rows: Mask
    """Mask of `table.gpu`."""
    table: TraceTable
    """The table with only these rows. Its `limits` tell which work was left out."""
    spans: Spans


class _Marks(NamedTuple):
    """From the first mark to the last, in the processes that one device works for."""

    start_ns: int
    second_ns: int
    """The end of the first step on the host: the start of the second mark, or the end of the only one."""
    end_ns: int
    thread: int


def work_spans(gpu: GpuColumns) -> Spans:
    """From the start of each device's first work to the end of its last."""
    return {
        device: Span(int(gpu.start_ns[rows].min()), int(gpu.end_ns[rows].max()))
        for device, rows in rows_of_each(gpu.device).items()
    }


def steps(table: TraceTable) -> Steps | None:
    """The steps; None where the trace marks none, or where no work was launched in them."""
    if not len(step_rows(table)):
        return None
    return _of_host(table) if is_of_host(table) else _of_gpu(table, launch_rows(table))


def _of_host(table: TraceTable) -> Steps | None:
    """The operators that began between the first mark and the end of the last."""
    marks = _marks(table, np.arange(len(table.gpu)))
    at_ns = table.gpu.start_ns
    rows = (at_ns >= marks.start_ns) & (at_ns < marks.end_ns)
    if not rows.any():
        return None
    last_ns = int(table.host.end_ns[operator_rows(table)[rows]].max())
    span = Span(marks.start_ns, max(marks.end_ns, last_ns), marks.thread)
    return Steps(rows, restricted(table, rows), {HOST.id: span})


def _of_gpu(table: TraceTable, launches: Indices) -> Steps | None:
    marks = {device: _marks(table, rows) for device, rows in rows_of_each(table.gpu.device).items()}
    earlier, later = _outside(table, launches, marks)
    # Work that ran beside earlier work is left out too, or its time would count as idle.
    beside = ~(earlier | later) & (table.gpu.start_ns < _last_end_ns(table.gpu, earlier))
    rows = ~(earlier | later | beside)
    if not rows.any():
        return None
    spans: Spans = {}
    left = rows_of_each(table.gpu.device, np.flatnonzero(earlier))
    done_ns = {device: int(table.gpu.end_ns[its].max()) for device, its in left.items()}
    for device, work in rows_of_each(table.gpu.device, np.flatnonzero(rows)).items():
        spans[device] = _span(table, launches, work, done_ns.get(device), marks[device])
    said = (*_left_out(table.gpu, earlier, later, beside), *_cut(done_ns.keys(), spans, marks))
    kept = table if rows.all() else restricted(table, rows)
    return Steps(rows, replace(kept, limits=(*table.limits, *said)) if said else kept, spans)


def _marks(table: TraceTable, work: Ints) -> _Marks:
    """The marks of the processes that this work belongs to; of all processes where none of those marks
    steps."""
    marks = step_rows(table)
    owners = np.unique(table.gpu.process[work])
    own = marks[np.isin(processes_of(table)[marks], owners)]
    marks = own if len(own) else marks
    last = marks[np.argmax(table.host.end_ns[marks])]
    starts = np.append(np.unique(table.host.start_ns[marks]), table.host.end_ns[last])
    return _Marks(
        int(starts[0]),
        int(starts[1]),
        int(table.host.end_ns[last]),
        int(table.host.thread[last]),
    )


def _outside(table: TraceTable, launches: Indices, marks: dict[int, _Marks]) -> tuple[Mask, Mask]:
    """Masks of the GPU work launched before the first mark, and of that launched after the last."""
    gpu, known = table.gpu, launches != NONE
    at_ns = np.append(table.host.start_ns, NONE)[launches]
    earlier, later = _left_over(gpu, ~known), np.zeros(len(gpu), dtype=np.bool_)
    for device, rows in rows_of_each(gpu.device, np.flatnonzero(known)).items():
        earlier[rows] |= at_ns[rows] < marks[device].start_ns
        later[rows] = at_ns[rows] >= marks[device].end_ns
    return earlier, later


def _left_over(gpu: GpuColumns, unknown: Mask) -> Mask:
    """Mask of work with unknown launch that started before all work with a known launch on its stream,
    because a stream runs in the order of launches. On a stream without known launches the device's count."""
    device, stream = _devices(gpu), _streams(gpu)
    first_ns = _least(stream, np.where(unknown, NEVER, gpu.start_ns))
    of_device_ns = _least(device, np.where(unknown, NEVER, gpu.start_ns))
    first_ns = np.where(first_ns == NEVER, of_device_ns, first_ns)
    found: Mask = unknown & (first_ns != NEVER) & (gpu.start_ns < first_ns)
    return found


def _span(
    table: TraceTable, launches: Indices, work: Ints, done_ns: int | None, marks: _Marks
) -> Span:
    """The span of the device that does this work. It begins after the work of earlier steps, where the trace
    has some."""
    gpu = table.gpu
    first_ns, last_ns = int(gpu.start_ns[work].min()), int(gpu.end_ns[work].max())
    start_ns = marks.start_ns if done_ns is None else max(marks.start_ns, done_ns)
    if done_ns is None and _is_cut(table, launches, work, marks):
        start_ns = first_ns
    return Span(min(start_ns, first_ns), max(marks.end_ns, last_ns), marks.thread)


def _is_cut(table: TraceTable, launches: Indices, work: Ints, marks: _Marks) -> bool:
    """Whether the trace lacks earlier work that the device still had to do, because a profiler misses
    launches from before it was attached.

    In that case the first work began long after its launch and after the first step had ended on the host,
    with nothing running meanwhile.
    """
    gpu = table.gpu
    first = work[np.argmin(gpu.start_ns[work])]
    call, start = launches[first : first + 1], int(gpu.start_ns[first])
    if call[0] == NONE or start < marks.second_ns:
        return False
    returned = int(call_returns(table.host, call_kinds(table), call)[0])
    meanwhile = (gpu.start_ns < start) & (gpu.end_ns > returned)
    return start - returned > UNSEEN_NS and not meanwhile.any()


def _left_out(gpu: GpuColumns, earlier: Mask, later: Mask, beside: Mask) -> Iterator[str]:
    whole_ns = max(int(gpu.duration_ns.sum()), 1)
    n_beside = int(beside.sum())
    more = f", and {n_beside:,} of the steps that ran beside them" if n_beside else ""
    for rows, when in (
        (earlier, f"before the first marked step{more}"),
        (later, "after the last marked step"),
    ):
        if rows.any():
            share = int(gpu.duration_ns[rows].sum()) / whole_ns
            yield (
                f"Left out: {int(rows.sum()):,} pieces of GPU work ({share:.1%} of the time of all) "
                f"that were launched {when}."
            )


def _cut(left_over: Collection[int], spans: Spans, marks: dict[int, _Marks]) -> Iterator[str]:
    """Sentences on cut spans. `left_over` are the devices that have work of earlier steps."""
    for device, span in spans.items():
        ahead_ns = span.start_ns - marks[device].start_ns
        if ahead_ns > 0 and device not in left_over:
            yield (
                f"Left out: the {ahead_ns * 1e-6:,.3f} ms from the first mark to the first work of "
                f"GPU {device}, which was launched long before it began: the GPU was at work that "
                "the trace lacks, most likely that of earlier steps."
            )


def _last_end_ns(gpu: GpuColumns, rows: Mask) -> Ints:
    """For each row the time at which its device had finished the last of these rows; before every start where
    it had none."""
    return -_least(_devices(gpu), np.where(rows, -gpu.end_ns, NEVER))


def _devices(gpu: GpuColumns) -> Ints:
    """A number for each row's device. Each process has its own devices."""
    places = np.stack([gpu.process, gpu.device])
    return np.unique(places, axis=1, return_inverse=True)[1].reshape(-1)


def _streams(gpu: GpuColumns) -> Ints:
    places = np.stack([_devices(gpu), gpu.stream])
    return np.unique(places, axis=1, return_inverse=True)[1].reshape(-1)


def _least(place: Ints, value: Ints) -> Ints:
    """For each row the smallest value of its place."""
    least = np.full(int(place.max(initial=0)) + 1, NEVER)
    np.minimum.at(least, place, value)
    return least[place]


OURS = re.compile(r"peakward::step$")
TORCHS = re.compile(r"ProfilerStep#\d+$")


def step_rows(table: TraceTable) -> NDArray[np.int64]:
    """Positions in `host` of the marked steps: Peakward's where there are any, else torch's ProfilerStep."""
    rows = rows_of(table.host, (HostKind.RANGE, HostKind.OP))
    for pattern in (OURS, TORCHS):
        steps = rows[named(table, rows, pattern)]
        if len(steps):
            return steps
    return rows[:0]


def begun_in_steps(table: TraceTable) -> NDArray[np.bool_]:
    """Mask of the host rows that began between the first mark and the end of the last."""
    marks = step_rows(table)
    start, end = table.host.start_ns[marks].min(), table.host.end_ns[marks].max()
    found: NDArray[np.bool_] = (table.host.start_ns >= start) & (table.host.start_ns < end)
    return found


def n_steps(table: TraceTable) -> int:
    """The number of steps. If several processes mark steps, the largest number counts."""
    _, numbers = np.unique(processes_of(table)[step_rows(table)], return_counts=True)
    return int(numbers.max(initial=0))
