"""The causes of a rank's lateness: what its GPU did longer, before the collectives that it began last, than
the GPUs of the other ranks did before the same ones; and what its host did while its GPU was idle."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import Excess
from peakward.traces.collectives import Collectives, RankTrace
from peakward.traces.intervals import (
    Intervals,
    covered,
    gaps,
    intersect,
    self_time,
    total,
    union,
)
from peakward.traces.kernel_names import short_name
from peakward.traces.table import NONE, HostKind, TraceTable, rows_of_each

LEAST = 0.1
"""The least share of the excess that is worth its name."""
MOST = 3
"""The most causes that are told."""
_THREADS = 8
"""The most threads of a host that are looked at, those with most rows."""


def causes(
    traces: Sequence[RankTrace], found: Collectives, late: int, which: NDArray[np.bool_]
) -> tuple[Excess, ...]:
    """The largest excesses of the rank at position `late`, over the mean of the ranks that have a part in all
    of the collectives `which`; none where no other rank has.

    Before a collective is the time since the rank's last one ended, or its trace began.
    """
    others = [
        at
        for at, joined in enumerate(found.joined)
        if at != late and joined[which].all() and found.offset_ns[at] is not None
    ]
    if not others or not which.any():
        return ()
    before = {at: _before(traces[at], found, at, which) for at in (late, *others)}
    work = _excess({at: _work(traces[at], before[at]) for at in before}, late)
    quiet = {at: _quiet(traces[at].table, before[at]) for at in before}
    idle_ns = total(quiet[late]) - sum(total(quiet[at]) for at in others) // len(others)
    told = [Excess(kind="work", name=name, ns=ns) for name, ns in work.most_common(MOST)]
    if idle_ns > 0:
        hosts = _excess({at: _host(traces[at].table, quiet[at]) for at in before}, late)
        name, ns = next(iter(hosts.most_common(1)), ("", 0))
        told.append(Excess(kind="idle", name=name if ns > idle_ns / 2 else None, ns=idle_ns))
    told.sort(key=lambda each: -each.ns)
    least_ns = LEAST * sum(each.ns for each in told)
    return tuple(each for each in told[:MOST] if each.ns >= max(least_ns, 1))


def _excess(of_rank: dict[int, Counter[str]], late: int) -> Counter[str]:
    """The late one's times beyond the mean of the others, where they are longer."""
    mean: Counter[str] = Counter()
    for at, each in of_rank.items():
        if at != late:
            mean.update(each)
    n_others = len(of_rank) - 1
    return Counter(
        {name: ns - mean[name] // n_others for name, ns in of_rank[late].items()}
    ) & Counter(of_rank[late])


def _before(trace: RankTrace, found: Collectives, at: int, which: NDArray[np.bool_]) -> Intervals:
    """On the rank's own clock."""
    gpu, joined = trace.table.gpu, found.joined[at]
    ends = np.sort(gpu.end_ns[found.row[at, joined]])
    starts = gpu.start_ns[found.row[at, which]]
    last = np.searchsorted(ends, starts, side="right") - 1
    begin = np.where(last >= 0, ends[last], gpu.start_ns[0])
    return union(begin, starts)


def _work(trace: RankTrace, during: Intervals) -> Counter[str]:
    gpu = trace.table.gpu
    rows = np.flatnonzero(~trace.communication)
    ns = covered(during, gpu.start_ns[rows], gpu.end_ns[rows])
    named = _named(trace.table, gpu.name[rows], ns)
    found: Counter[str] = Counter()
    for name, total_ns in named.items():
        found[short_name(name)] += total_ns
    return found


def _quiet(table: TraceTable, during: Intervals) -> Intervals:
    """The part in which nothing ran."""
    busy = union(table.gpu.start_ns, table.gpu.end_ns)
    if not len(during.start):
        return during
    return intersect(during, gaps(busy, int(during.start[0]), int(during.end[-1])))


def _host(table: TraceTable, during: Intervals) -> Counter[str]:
    """The innermost rows of the host, by thread, in that time; the profiler's marks of steps tell nothing."""
    host = table.host
    marks = np.array([each.startswith("ProfilerStep#") for each in table.names], dtype=np.bool_)
    rows = np.flatnonzero((host.kind != HostKind.OVERHEAD) & ~marks[host.name])
    by_thread = sorted(rows_of_each(host.thread, rows).values(), key=len, reverse=True)
    found: Counter[str] = Counter()
    for each in by_thread[:_THREADS]:
        inner, ns = self_time(host, each, during)
        known = inner != NONE
        found.update(_named(table, host.name[inner[known]], ns[known]))
    return found


def _named(table: TraceTable, names: NDArray[np.int32], ns: NDArray[np.int64]) -> Counter[str]:
    sums = np.zeros(len(table.names), np.int64)
    np.add.at(sums, names, ns)
    return Counter({table.names[at]: int(sums[at]) for at in np.flatnonzero(sums).tolist()})
