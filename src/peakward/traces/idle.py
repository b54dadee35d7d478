"""The idle time of each GPU by cause (`idle_causes` defines the causes)."""

from collections.abc import Iterator, Sequence

import numpy as np

from peakward.records.profile import DeviceIdle, Idle, IdleCall
from peakward.traces.host_calls import rows_by_call
from peakward.traces.host_time import host_time
from peakward.traces.idle_causes import IdleCause
from peakward.traces.idle_gaps import Gaps, idle_gaps
from peakward.traces.intervals import Intervals, covered, union
from peakward.traces.step_spans import Spans, work_spans
from peakward.traces.table import Indices, Ints, Table

N_CALLS = 3
"""The number of calls kept for each cause."""
LEAST_OF_GAPS = 0.1
"""The smallest share of a cause's gaps. A call with less of their time explains little."""


def idle(table: Table, launches: Indices, spans: Spans | None = None) -> Idle:
    """The idle time of each device by cause. `launches` is the result of `launch_rows`, and `spans` are as
    for `breakdown`."""
    spans = work_spans(table.gpu) if spans is None else spans
    host = host_time(table)
    found = idle_gaps(table, launches, host, spans)
    devices = tuple(_device_idle(device, each) for device, each in found.items())
    return Idle(
        devices=devices, together=_added_up(devices), calls=_calls(table, list(found.values()))
    )


def _calls(table: Table, found: Sequence[Gaps]) -> tuple[IdleCall, ...]:
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
