"""Compares several files of one job: aligned clocks, and which rank waited for which."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.records.errors import PeakwardError
from peakward.records.profile import Job, Rank
from peakward.traces.intervals import total, union
from peakward.traces.table import GpuKind, Ints, TraceTable

UNLIKELY = 0.01
"""The probability limit for a straggler: chance would make one of the ranks last that often in fewer than
this share of jobs."""
LATE_SHARE = 0.03
"""The mean wait of the others for the late rank, as a share of its time, from which it is worth a finding."""
MOST = 0.5
"""The least share of all waiting that is for the late rank. With less, several ranks take turns, as ranks
with unequal work do."""


_MOST_RANKS = 1 << 20
"""The most ranks: a world size is any number that a file holds."""


class RankTrace(NamedTuple):
    """A table, and the mask of its GPU rows that communicate."""

    table: TraceTable
    communication: NDArray[np.bool_]


class _Collectives(NamedTuple):
    """The collectives of every rank, (ranks, collectives), on each rank's own clock."""

    start_ns: Ints
    end_ns: Ints
    n_unmatched: int


class _Waits(NamedTuple):
    """The time that each rank waited for the last one of each collective."""

    ns: Ints
    """(ranks, collectives)."""
    last: NDArray[np.int64]
    """For each collective, the position of the rank that began it last."""


def compare(traces: Sequence[RankTrace]) -> Job:
    """The ranks of one job side by side, in their order.

    Collectives are matched by kernel name and order, for names that all ranks have equally often. A
    collective ends on all ranks at about the same moment, whoever came late, so clocks are aligned by the
    median difference of the ends. Until the last rank begins, the others wait.

    Raises:
        PeakwardError: two files of one rank, or of jobs of different sizes; files of which only some
            say their rank.
    """
    by_rank = ordered([each.table for each in traces])
    traces, ranks = [traces[at] for at in by_rank.values()], list(by_rank)
    found = _matched(traces)
    offsets = _offsets(found)
    waits = _waits(found, offsets)
    n_last = np.bincount(waits.last, minlength=len(traces))
    spans = [_span(each.table) for each in traces]
    late = _late(waits, spans)
    compute = [_busy(each.table, ~each.communication) for each in traces]
    return Job(
        ranks=tuple(
            Rank(
                rank=rank,
                source=each.table.source,
                offset_ns=int(offsets[i]) if len(waits.last) else None,
                compute_ns=compute[i],
                communication_ns=_busy(each.table, each.communication),
                waited_ns=int(waits.ns[i].sum()),
                n_last=int(n_last[i]),
                waited_for_late_ns=0
                if late is None
                else int(waits.ns[i, waits.last == late].sum()),
                idle_ns=spans[i] - _any_work(each.table),
            )
            for i, (rank, each) in enumerate(zip(ranks, traces, strict=True))
        ),
        n_collectives=len(waits.last),
        n_unmatched=found.n_unmatched,
        imbalance=max(compute) * len(compute) / sum(compute) if sum(compute) else None,
        straggler=_straggler(n_last, ranks) if len(waits.last) else None,
        late=None if late is None else ranks[late],
        absent=_absent([each.table for each in traces], ranks),
    )


def ordered(tables: Sequence[TraceTable]) -> dict[int, int]:
    """For each rank, in order, the position of its table; in the given order where no table has a rank.

    Raises:
        PeakwardError: as `compare`.
    """
    known = {at: each.job for at, each in enumerate(tables) if each.job is not None}
    if not known:
        return {at: at for at in range(len(tables))}
    silent = [each.source for each in tables if each.job is None]
    if silent:
        raise PeakwardError(
            f"expected files that all say their rank, got {', '.join(silent)}, which "
            f"{'does' if len(silent) == 1 else 'do'} not: name the files of one job"
        )
    sizes = {job.world_size for job in known.values()}
    if len(sizes) > 1:
        raise PeakwardError(
            f"expected files of one job, got world sizes {_listed(sorted(sizes))}: "
            "name the files of one job"
        )
    found: dict[int, int] = {}
    for at, job in known.items():
        if (other := found.setdefault(job.rank, at)) != at:
            raise PeakwardError(
                f"expected files of different ranks, got {tables[other].source} and {tables[at].source} "
                f"of rank {job.rank}: name one file of each rank, of the same steps"
            )
    return dict(sorted(found.items()))


def _absent(tables: Sequence[TraceTable], ranks: Sequence[int]) -> tuple[int, ...]:
    size = max((each.job.world_size for each in tables if each.job is not None), default=0)
    return tuple(sorted(set(range(min(size, _MOST_RANKS))) - set(ranks)))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(each) for each in numbers)


def _matched(traces: Sequence[RankTrace]) -> _Collectives:
    by_rank = [_by_name(each) for each in traces]
    counts = [{name: len(rows) for name, rows in each.items()} for each in by_rank]
    shared = [
        name for name in counts[0] if all(each.get(name) == counts[0][name] for each in counts)
    ]
    n_all = sum(sum(each.values()) for each in counts)
    n_shared = sum(counts[0][name] for name in shared)
    starts, ends = [], []
    for each, names in zip(traces, by_rank, strict=True):
        rows = np.concatenate([names[name] for name in shared] or [np.zeros(0, np.int64)])
        starts.append(each.table.gpu.start_ns[rows])
        ends.append(each.table.gpu.end_ns[rows])
    return _Collectives(np.array(starts), np.array(ends), n_all - n_shared * len(traces))


def _by_name(trace: RankTrace) -> dict[str, NDArray[np.int64]]:
    """Rows of the communicating kernels of each name, in order of their starts."""
    gpu = trace.table.gpu
    rows = np.flatnonzero(trace.communication & (gpu.kind == GpuKind.KERNEL))
    return {
        trace.table.names[name]: rows[gpu.name[rows] == name] for name in np.unique(gpu.name[rows])
    }


def _offsets(found: _Collectives) -> Ints:
    """The offset from each rank's clock to the first rank's; 0 where nothing was matched."""
    if not found.end_ns.shape[1]:
        return np.zeros(len(found.end_ns), np.int64)
    apart: Ints = np.rint(np.median(found.end_ns[0] - found.end_ns, axis=1)).astype(np.int64)
    return apart


def _waits(found: _Collectives, offsets: Ints) -> _Waits:
    if not found.start_ns.shape[1]:
        return _Waits(np.zeros(found.start_ns.shape, np.int64), np.zeros(0, np.int64))
    start_ns = found.start_ns + offsets[:, None]
    begun_ns = np.minimum(start_ns.max(axis=0), found.end_ns + offsets[:, None])
    return _Waits(begun_ns - start_ns, start_ns.argmax(axis=0))


def _late(waits: _Waits, spans_ns: Sequence[int]) -> int | None:
    """The position of the rank for which the others wait longer than they wait for one another."""
    n = len(spans_ns)
    caused = np.bincount(waits.last, weights=waits.ns.sum(axis=0), minlength=n)
    at = int(caused.argmax())
    beyond = (caused[at] - (caused.sum() - caused[at]) / max(n - 1, 1)) / max(n - 1, 1)
    is_late = beyond >= LATE_SHARE * np.median(spans_ns) and caused[at] > MOST * caused.sum()
    return at if is_late else None


def _busy(table: TraceTable, rows: NDArray[np.bool_]) -> int:
    chosen = rows & (table.gpu.kind == GpuKind.KERNEL)
    return total(union(table.gpu.start_ns[chosen], table.gpu.end_ns[chosen]))


def _any_work(table: TraceTable) -> int:
    return total(union(table.gpu.start_ns, table.gpu.end_ns))


def _span(table: TraceTable) -> int:
    gpu = table.gpu
    return int(gpu.end_ns.max() - gpu.start_ns.min()) if len(gpu) else 0


def _straggler(n_last: NDArray[np.int64], ranks: Sequence[int]) -> int | None:
    """The rank that is last more often than chance explains: by Hoeffding's bound on a share of 1 / ranks,
    for the largest of all ranks (union bound)."""
    n, k = int(n_last.sum()), len(ranks)
    excess = n_last.max() / n - 1 / k
    if excess <= 0 or k * np.exp(-2 * n * excess**2) > UNLIKELY:
        return None
    return ranks[int(n_last.argmax())]
