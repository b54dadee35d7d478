"""The work of a trace without a GPU: the self time of the framework's operators on the host.

An operator's self time is its duration minus that of the operators directly inside it on its thread. Each
operator becomes a row of `Table.gpu`, so that every analysis of GPU work by name, phase, range or shape also
works for the host. Such a row starts with its operator and lasts for its self time, which is not where that
time was spent on the clock. Questions about simultaneous work therefore use the operators' own rows
(`host_breakdown`). On one thread the self times add up to the time in any operator.
"""

from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import CPU, Breakdown, DeviceTime
from peakward.traces.collectives import RankTrace
from peakward.traces.intervals import rows_of, self_time, total, union
from peakward.traces.table import (
    NONE,
    Device,
    GpuColumns,
    GpuKind,
    HostKind,
    Indices,
    Ints,
    TraceTable,
)

HOST = Device(NONE, CPU, None, None)
"""The host's entry among a table's devices. Its id is in the rows of the host's work."""


def with_host_work(table: TraceTable) -> TraceTable:
    """The table with a row of work for each operator; unchanged if it has GPU work, or no operators."""
    ops = rows_of(table.host, (HostKind.OP,))
    if len(table.gpu) or not len(ops):
        return table
    return replace(table, gpu=_operators(table, ops), devices=(HOST,))


def is_of_host(table: TraceTable) -> bool:
    """Whether the table's work is the host's operators."""
    return HOST in table.devices


def operator_rows(table: TraceTable) -> Indices:
    """For each row of the host's work the position of its operator in `Table.host`: that launched it."""
    return table.gpu.correlation.astype(np.int32)


def host_breakdown(table: TraceTable, span_ns: int | None = None) -> Breakdown:
    """The time of the host: busy while at least one of these operators ran on any thread.

    Communication is not told apart. `span_ns` is the span of the steps; None: from the start of the first
    operator to the end of the last.
    """
    rows = operator_rows(table)
    start, end = table.host.start_ns[rows], table.host.end_ns[rows]
    busy_ns = total(union(start, end))
    if span_ns is None:
        span_ns = int(end.max() - start.min()) if len(rows) else 0
    time = DeviceTime(
        device=HOST.id,
        span_ns=span_ns,
        busy_ns=busy_ns,
        compute_ns=busy_ns,
        communication_ns=0,
        memory_ns=0,
        communication_under_compute_ns=0,
        memory_under_compute_ns=0,
        exposed_memory_ns=0,
        n_compute=len(rows),
        n_communication=0,
        n_copies=0,
        n_sets=0,
    )
    together = msgspec.structs.replace(time, device=None)
    return Breakdown(devices=(time,), together=together, span_ns=span_ns)


def operator_self_time(table: TraceTable, ops: NDArray[np.int64]) -> Ints:
    """The self time of each of these operators, which are in the order of the table."""
    host = table.host
    found = np.zeros(len(host), dtype=np.int64)
    for thread in np.unique(host.thread[ops]):
        here = ops[host.thread[ops] == thread]
        during = union(host.start_ns[here], host.end_ns[here])
        rows, time_ns = self_time(host, here, during)
        found[rows] = time_ns
    return found[ops]


def _operators(table: TraceTable, ops: NDArray[np.int64]) -> GpuColumns:
    host, n = table.host, len(ops)
    process = np.array([thread.process for thread in table.threads], dtype=np.int32)
    return GpuColumns(
        start_ns=host.start_ns[ops],
        duration_ns=operator_self_time(table, ops),
        kind=np.full(n, GpuKind.KERNEL, dtype=np.uint8),
        name=host.name[ops],
        device=np.full(n, HOST.id, dtype=np.int32),
        stream=host.thread[ops].astype(np.int64),
        process=process[host.thread[ops]],
        correlation=ops.astype(np.int64),
        n_bytes=np.full(n, NONE, dtype=np.int64),
        direction=np.zeros(n, dtype=np.uint8),
        graph=np.full(n, NONE, dtype=np.int64),
        collective=np.full(n, NONE, dtype=np.int32),
    )


def host_rank(table: TraceTable, chosen: NDArray[np.bool_]) -> RankTrace:
    """A rank whose work is the host's, to be compared with others: as computing the operators that call no
    others, where they are on the clock; as communication what gloo's own threads run.

    Args:
        chosen: mask of the host rows that count, as those in the steps.
    """
    host = table.host
    gloo = np.array([each.startswith("gloo:") for each in table.names], dtype=np.bool_)
    asked = np.array([each.startswith("c10d::") for each in table.names], dtype=np.bool_)
    communication = chosen & (host.kind == HostKind.RANGE) & gloo[host.name]
    computing = np.zeros_like(communication)
    computing[_innermost(table)] = True
    computing &= chosen & ~asked[host.name]
    rows = np.flatnonzero(communication | computing)
    work = replace(_operators(table, rows), duration_ns=host.duration_ns[rows])
    return RankTrace(replace(table, gpu=work), communication[rows])


def _innermost(table: TraceTable) -> NDArray[np.int64]:
    """The operators that call no others."""
    host = table.host
    ops = rows_of(host, (HostKind.OP,))
    ops = ops[np.lexsort((-host.duration_ns[ops], host.start_ns[ops], host.thread[ops]))]
    inside = (host.thread[ops[1:]] == host.thread[ops[:-1]]) & (
        host.start_ns[ops[1:]] < host.end_ns[ops[:-1]]
    )
    found: NDArray[np.int64] = ops[np.append(~inside, True)[: len(ops)]]
    return found
