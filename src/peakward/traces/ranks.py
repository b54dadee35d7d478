"""Several files of one job: their clocks aligned, who waited, and for whom."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.records.errors import PeakwardError
from peakward.records.profile import Job, Rank
from peakward.traces.intervals import total, union
from peakward.traces.table import GpuKind, Ints, Table

UNLIKELY = 0.01
"""A rank is called a straggler where chance would make one of the ranks last that often in fewer
than this share of jobs."""


class RankTrace(NamedTuple):
    """A table, and which of its GPU rows communicate."""

    table: Table
    communication: NDArray[np.bool_]


class _Collectives(NamedTuple):
    """What every rank ran: (ranks, collectives), on each rank's own clock."""

    start_ns: Ints
    end_ns: Ints
    n_unmatched: int


def compare(traces: Sequence[RankTrace]) -> Job:
    """The ranks of one job side by side.

    Collectives are matched by kernel name and order, for names that all ranks have equally often.
    A collective ends on all ranks at about the same moment, whoever came late, so clocks are
    aligned by the median difference of the ends; before the last rank begins, the others wait.

    Raises:
        PeakwardError: two files of one rank, or of jobs of different sizes.
    """
    ranks = _ranks(traces)
    found = _matched(traces)
    offsets = _offsets(found)
    start_ns = found.start_ns + offsets[:, None]
    n_collectives = start_ns.shape[1]
    last_ns = start_ns.max(axis=0) if n_collectives else np.zeros(0, np.int64)
    waited_ns = np.minimum(last_ns, found.end_ns + offsets[:, None]) - start_ns
    n_last = np.bincount(start_ns.argmax(axis=0), minlength=len(traces)) if n_collectives else None
    compute = [_busy(each.table, ~each.communication) for each in traces]
    return Job(
        ranks=tuple(
            Rank(
                rank=rank,
                source=each.table.source,
                offset_ns=int(offsets[i]),
                compute_ns=compute[i],
                communication_ns=_busy(each.table, each.communication),
                waited_ns=int(waited_ns[i].sum()),
                n_last=0 if n_last is None else int(n_last[i]),
            )
            for i, (rank, each) in enumerate(zip(ranks, traces, strict=True))
        ),
        n_collectives=n_collectives,
        n_unmatched=found.n_unmatched,
        imbalance=max(compute) * len(compute) / sum(compute) if sum(compute) else None,
        straggler=None if n_last is None else _straggler(n_last, ranks),
    )


def _ranks(traces: Sequence[RankTrace]) -> list[int]:
    """Of each file; where none says, their order."""
    jobs = [each.table.job for each in traces]
    known = [job for job in jobs if job is not None]
    if len(known) < len(jobs):
        return list(range(len(jobs)))
    ranks = [job.rank for job in known]
    if len(set(ranks)) < len(ranks):
        raise PeakwardError(
            f"expected files of different ranks, got {_listed(ranks)}: name each rank's file once"
        )
    sizes = {job.world_size for job in known}
    if len(sizes) > 1:
        raise PeakwardError(
            f"expected files of one job, got world sizes {_listed(sorted(sizes))}: "
            "name the files of one job"
        )
    return ranks


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
    """What to add to each rank's times for the first rank's clock; 0 where nothing was matched."""
    if not found.end_ns.shape[1]:
        return np.zeros(len(found.end_ns), np.int64)
    apart: Ints = np.rint(np.median(found.end_ns[0] - found.end_ns, axis=1)).astype(np.int64)
    return apart


def _busy(table: Table, rows: NDArray[np.bool_]) -> int:
    chosen = rows & (table.gpu.kind == GpuKind.KERNEL)
    return total(union(table.gpu.start_ns[chosen], table.gpu.end_ns[chosen]))


def _straggler(n_last: NDArray[np.int64], ranks: Sequence[int]) -> int | None:
    """The rank that is last too often for chance: Hoeffding's bound on a share of 1 / ranks, for
    the largest of all ranks (union bound)."""
    n, k = int(n_last.sum()), len(ranks)
    excess = n_last.max() / n - 1 / k
    if excess <= 0 or k * np.exp(-2 * n * excess**2) > UNLIKELY:
        return None
    return ranks[int(n_last.argmax())]
