"""Compares several files of one job: aligned clocks, and which rank waited for which."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.records.errors import PeakwardError
from peakward.records.profile import Job, Rank
from peakward.traces.collectives import Collectives, RankTrace, matched
from peakward.traces.intervals import Intervals, subtract, total, union
from peakward.traces.lateness import causes
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


class _Waits(NamedTuple):
    """The time that each rank waited for the last one of each collective."""

    ns: Ints
    """(ranks, collectives)."""
    last: NDArray[np.int64]
    """For each collective, the position of the rank that began it last."""
    behind_ns: Ints
    """For each, the time between the beginnings of its last rank and the last but one."""
    n_joined: NDArray[np.int64]
    """For each, how many ranks have a part in it."""


def compare(traces: Sequence[RankTrace]) -> Job:
    """The ranks of one job side by side, in their order.

    How collectives are matched and clocks aligned is in `collectives.py`.

    Raises:
        PeakwardError: two files of one rank, or of jobs of different sizes; files of which only some
            say their rank.
    """
    by_rank = ordered([each.table for each in traces])
    traces, ranks = [traces[at] for at in by_rank.values()], list(by_rank)
    found = matched(traces)
    waits = _waits(found)
    n_last = np.bincount(waits.last, minlength=len(traces))
    behind = np.bincount(waits.last, weights=waits.behind_ns, minlength=len(traces))
    spans = [_span(each.table) for each in traces]
    late = _late(waits, spans)
    straggler = _straggler(waits, found.joined)
    slow = straggler if late is None else late
    computing = [_busy(each.table, ~each.communication) for each in traces]
    communicating = [_busy(each.table, each.communication) for each in traces]
    compute = [total(each) for each in computing]
    return Job(
        ranks=tuple(
            Rank(
                rank=rank,
                source=each.table.source,
                offset_ns=found.offset_ns[i],
                compute_ns=compute[i],
                communication_ns=total(communicating[i]),
                exposed_ns=total(subtract(communicating[i], computing[i])),
                waited_ns=int(waits.ns[i].sum()),
                n_last=int(n_last[i]),
                behind_ns=int(behind[i]),
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
        straggler=None if straggler is None else ranks[straggler],
        late=None if late is None else ranks[late],
        absent=_absent([each.table for each in traces], ranks),
        late_by=() if slow is None else causes(traces, found, slow, waits.last == slow),
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


def _waits(found: Collectives) -> _Waits:
    """Until the last rank of a collective begins, its others wait."""
    joined, start_ns = found.joined, found.start_ns
    if not joined.shape[1]:
        nothing = np.zeros(0, np.int64)
        return _Waits(np.zeros(joined.shape, np.int64), nothing, nothing, nothing)
    begun = np.where(joined, start_ns, np.iinfo(np.int64).min)
    last = begun.argmax(axis=0)
    ns = np.where(joined, np.minimum(begun.max(axis=0), found.end_ns) - start_ns, 0)
    behind_ns = np.diff(np.sort(begun, axis=0)[-2:], axis=0)[0]
    return _Waits(ns, last, behind_ns, joined.sum(axis=0))


def _late(waits: _Waits, spans_ns: Sequence[int]) -> int | None:
    """The position of the rank for which the others wait longer than they wait for one another."""
    n = len(spans_ns)
    caused = np.bincount(waits.last, weights=waits.ns.sum(axis=0), minlength=n)
    at = int(caused.argmax())
    beyond = (caused[at] - (caused.sum() - caused[at]) / max(n - 1, 1)) / max(n - 1, 1)
    is_late = beyond >= LATE_SHARE * np.median(spans_ns) and caused[at] > MOST * caused.sum()
    return at if is_late else None


def _busy(table: TraceTable, rows: NDArray[np.bool_]) -> Intervals:
    chosen = rows & (table.gpu.kind == GpuKind.KERNEL)
    return union(table.gpu.start_ns[chosen], table.gpu.end_ns[chosen])


def _any_work(table: TraceTable) -> int:
    return total(union(table.gpu.start_ns, table.gpu.end_ns))


def _span(table: TraceTable) -> int:
    gpu = table.gpu
    return int(gpu.end_ns.max() - gpu.start_ns.min()) if len(gpu) else 0


def _straggler(waits: _Waits, joined: NDArray[np.bool_]) -> int | None:
    """The position of the rank that is last more often than chance explains, by which each rank of a
    collective is last as often as any other: by Hoeffding's bound, for the largest of all ranks (union
    bound)."""
    n, k = len(waits.last), len(joined)
    if not n:
        return None
    expected = (joined / waits.n_joined).mean(axis=1)
    excess = np.bincount(waits.last, minlength=k) / n - expected
    at = int(excess.argmax())
    if excess[at] <= 0 or k * np.exp(-2 * n * excess[at] ** 2) > UNLIKELY:
        return None
    return at
