"""Which kernels of several ranks are one collective, and what that tells of the ranks' clocks.

A collective ends at about the same moment on all its ranks, whoever came late. Clocks of two hosts, and of
two traces, have nothing else in common.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.traces.table import NONE, GpuKind, Ints, TraceTable, rows_of_each

_PAIRWISE = ("send", "recv", "isend", "irecv", "gloo:send", "gloo:recv")
"""Collectives that are none: what one rank sends, another receives, and equal descriptions are of two."""


class RankTrace(NamedTuple):
    """A table, and the mask of its GPU rows that communicate."""

    table: TraceTable
    communication: NDArray[np.bool_]


class Collectives(NamedTuple):
    """The collectives that several ranks have, each array (ranks, collectives), on one clock."""

    row: NDArray[np.int64]
    """Positions among a rank's GPU rows; NONE where it has no part in it."""
    start_ns: Ints
    """On the clock of the first rank; 0 where it has no part in it."""
    end_ns: Ints
    n_unmatched: int
    """Kernels of collectives that no other rank has, or other ranks have differently often."""
    offset_ns: tuple[int | None, ...]
    """For each rank what puts its times on the first rank's clock; None where nothing ties it to that."""

    @property
    def joined(self) -> NDArray[np.bool_]:
        """Which rank has a part in which."""
        found: NDArray[np.bool_] = self.row != NONE
        return found


def matched(traces: Sequence[RankTrace]) -> Collectives:
    """The n-th collective of one description on each rank that has it: kind, size, type, group and, where the
    trace has it, number. Where the trace describes none, those of one kernel name, on all ranks."""
    by_rank = [_by_key(each) for each in traces]
    of_key: dict[_Key, dict[int, NDArray[np.intp]]] = {}
    for at, each in enumerate(by_rank):
        for key, rows in each.items():
            of_key.setdefault(key, {})[at] = rows
    columns = [
        _columns(found, len(traces)) for key, found in of_key.items() if _fits(key, found, traces)
    ]
    row = np.concatenate([np.full((len(traces), 0), NONE, np.int64), *columns], axis=1)
    n_all = sum(len(rows) for each in by_rank for rows in each.values())
    return _on_one_clock(traces, row, n_all)


class _Key(NamedTuple):
    described: bool
    text: str


def _by_key(trace: RankTrace) -> dict[_Key, NDArray[np.intp]]:
    """Rows of communicating kernels by what they are told to be, in order of their starts."""
    gpu, names = trace.table.gpu, trace.table.names
    rows = np.flatnonzero(trace.communication & (gpu.kind == GpuKind.KERNEL))
    described = gpu.collective[rows] != NONE
    return {
        _Key(is_told, names[name]): found
        for is_told, column in ((True, gpu.collective), (False, gpu.name))
        for name, found in rows_of_each(column, rows[described == is_told]).items()
    }


def _fits(key: _Key, found: dict[int, NDArray[np.intp]], traces: Sequence[RankTrace]) -> bool:
    if len({len(rows) for rows in found.values()}) > 1 or len(found) < min(2, len(traces)):
        return False
    if key.text.lstrip('"').startswith(_PAIRWISE):
        return False
    return key.described or len(found) == len(traces)


def _columns(found: dict[int, NDArray[np.intp]], n_ranks: int) -> NDArray[np.int64]:
    made = np.full((n_ranks, len(next(iter(found.values())))), NONE, np.int64)
    for at, rows in found.items():
        made[at] = rows
    return made


def _on_one_clock(traces: Sequence[RankTrace], row: NDArray[np.int64], n_all: int) -> Collectives:
    start, end = np.zeros(row.shape, np.int64), np.zeros(row.shape, np.int64)
    for at, each in enumerate(traces):
        has = row[at] != NONE
        start[at, has] = each.table.gpu.start_ns[row[at, has]]
        end[at, has] = each.table.gpu.end_ns[row[at, has]]
    offsets = _offsets(end, row != NONE)
    for at, offset in enumerate(offsets):
        has = row[at] != NONE
        if offset is None:
            row[at] = NONE
        else:
            start[at, has] += offset
            end[at, has] += offset
    kept = (row != NONE).sum(axis=0) > 1
    row, start, end = row[:, kept], start[:, kept], end[:, kept]
    start[row == NONE], end[row == NONE] = 0, 0
    return Collectives(row, start, end, n_all - int((row != NONE).sum()), offsets)


def _offsets(end_ns: Ints, joined: NDArray[np.bool_]) -> tuple[int | None, ...]:
    """The median difference of the ends from those of ranks that are tied already, the first rank's where it
    has a part; from rank to rank where groups are of few."""
    if not len(end_ns) or not joined[0].any():
        return (None,) * len(end_ns)
    found: list[int | None] = [0, *(None for _ in end_ns[1:])]
    known, reference = joined[0].copy(), end_ns[0].copy()
    while True:
        new = [
            (at, shared)
            for at, offset in enumerate(found)
            if offset is None and (shared := joined[at] & known).any()
        ]
        if not new:
            return tuple(found)
        for at, shared in new:
            found[at] = offset = _median(reference[shared] - end_ns[at, shared])
            more = joined[at] & ~known
            reference[more] = end_ns[at, more] + offset
            known |= more


def _median(apart_ns: Ints) -> int:
    """The median; clocks may be decades apart, which a float does not hold to the nanosecond."""
    first = int(apart_ns[0])
    return first + round(float(np.median(apart_ns - first)))
