"""The critical path: the chain of work on GPUs and host that determined the total time.

It is followed backwards from the end of a GPU's last work, or of the last step where the host ends it. A work
came right after its launch or right after the work before it, whichever ended later (`path_edges`). A thread
of the host continued from its own earlier work, back to the last call in which it had waited for a GPU, and
from there to that GPU's work. Where it had been in no operator and no call, it continued from the last launch
by another thread of its process. Only shorter work on the path makes the whole shorter.

A trace shows the wait of one stream for another only as a call, so the work waited for is assumed to be the
last that ended. Waits between processes, and of collectives for other ranks, are not in one trace.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import CriticalPath, PathShare
from peakward.traces.host_time import host_time
from peakward.traces.intervals import union
from peakward.traces.path_walk import Stretch, walk
from peakward.traces.self_time import self_time
from peakward.traces.step_spans import Spans, work_spans
from peakward.traces.table import NONE, GpuKind, HostKind, Indices, Ints, Table


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
    table: Table,
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


def _off_host(
    table: Table, communication: NDArray[np.bool_], path: list[Stretch]
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


def _of_host(table: Table, path: list[Stretch]) -> Iterator[PathShare]:
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


def _by_name(table: Table, rows: NDArray[np.intp], ns: Ints) -> Iterator[PathShare]:
    """Host rows and their time, summed by kind and name."""
    n_names = len(table.names)
    code = table.host.kind[rows].astype(np.int64) * n_names + table.host.name[rows]
    codes, which, counts = np.unique(code, return_inverse=True, return_counts=True)
    sums = np.bincount(which, weights=ns, minlength=len(codes)).astype(np.int64)
    for at, n, total in zip(codes.tolist(), counts.tolist(), sums.tolist(), strict=True):
        kind, name = divmod(at, n_names)
        yield PathShare(kind=_HOST_KINDS[HostKind(kind)], name=table.names[name], n=n, ns=total)
