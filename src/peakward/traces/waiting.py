"""Where the host waited for the GPU, and how long launched work waited for it."""

import re

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import LaunchDelay, Waiting
from peakward.traces.breakdown import busy
from peakward.traces.calls import by_name, call_kinds, plain_name
from peakward.traces.host_time import HostTime, host_time
from peakward.traces.intervals import covered, nest, total, union
from peakward.traces.launches import call_returns, first_of_launch
from peakward.traces.step_spans import Span, Spans, work_spans
from peakward.traces.table import NONE, HostKind, Indices, Ints, TraceTable, rows_of_each

_LINE = re.compile(r"\.py\(\d+\): ")
_OURS, _TORCHS = 2, 1


def waiting(
    table: TraceTable, *, outside: str | None = None, among: NDArray[np.bool_] | None = None
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


def _names(table: TraceTable, rows: Indices | NDArray[np.intp]) -> Ints:
    """The name of each host row; NONE for row NONE."""
    if not len(table.host):
        return np.full(len(rows), NONE, dtype=np.int64)
    return np.where(rows == NONE, NONE, table.host.name[rows]).astype(np.int64)


def _within(table: TraceTable, calls: NDArray[np.intp], name: str | None) -> NDArray[np.bool_]:
    """Mask of the calls that lie in a range of this name on their thread."""
    if name is None or name not in table.names:
        return np.zeros(len(calls), dtype=np.bool_)
    of_name = table.host.name == table.names.index(name)
    rows = np.flatnonzero(of_name & (table.host.kind == HostKind.RANGE))
    threads, starts = table.host.thread[calls], table.host.start_ns[calls]
    inside: NDArray[np.bool_] = nest(table.host, rows).innermost(threads, starts) != NONE
    return inside


def _around(table: TraceTable, calls: NDArray[np.intp]) -> tuple[Indices, Indices, Indices]:
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


def _busy_during(table: TraceTable, host: HostTime, calls: NDArray[np.intp]) -> Ints:
    """For each call the nanoseconds in which a GPU ran work of its process."""
    found = np.zeros(len(calls), dtype=np.int64)
    owner, start, end = host.process[calls], host.host.start_ns[calls], host.host.end_ns[calls]
    for process in np.unique(owner):
        own = owner == process
        ran = busy(table.gpu, table.gpu.process == process)
        found[own] = covered(ran, start[own], end[own])
    return found


def _waiting(table: TraceTable, place: list[int], durations: Ints, idle: Ints) -> Waiting:
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


def launch_delays(
    table: TraceTable, launches: Indices, spans: Spans | None = None
) -> tuple[LaunchDelay, ...]:
    """The launches of each device that has the first work of a known launch.

    `launches` is the result of `launch_rows`, and `spans` are as for `breakdown`. The launch of a graph has
    its first work on one device and may have later work on others.
    """
    spans = work_spans(table.gpu) if spans is None else spans
    returned = call_returns(table.host, call_kinds(table), launches)
    first = first_of_launch(launches)
    known = rows_of_each(table.gpu.device, np.flatnonzero(launches != NONE))
    return tuple(
        _launch_delay(table, returned, first, rows, spans[device])
        for device, rows in known.items()
        if first[rows].any()
    )


def _launch_delay(
    table: TraceTable, returned: Ints, first: NDArray[np.bool_], rows: NDArray[np.intp], span: Span
) -> LaunchDelay:
    device = int(table.gpu.device[rows[0]])
    since, until = returned[rows], table.gpu.start_ns[rows]
    delays = np.maximum(until - since, 0)[first[rows]]
    median, p95, longest = np.quantile(delays, [0.5, 0.95, 1], method="inverted_cdf").tolist()
    span_ns = span.end_ns - span.start_ns
    since = np.maximum(since, span.start_ns)
    waits = until > since
    since, until = since[waits], until[waits]
    return LaunchDelay(
        device=device,
        n_launches=len(delays),
        median_ns=median,
        p95_ns=p95,
        max_ns=longest,
        mean_queue=int((until - since).sum()) / span_ns if span_ns else 0.0,
        max_queue=_deepest(since, until),
        empty_queue_share=1 - total(union(since, until)) / span_ns if span_ns else 1.0,
    )


def _deepest(since: Ints, until: Ints) -> int:
    """The largest number of intervals that share an instant."""
    at = np.concatenate((until, since))
    step = np.repeat(np.array([-1, 1], dtype=np.int64), len(since))
    # Ends come first in `at`, so a stable sort ends one interval before another begins.
    return int(np.cumsum(step[np.argsort(at, kind="stable")]).max(initial=0))
