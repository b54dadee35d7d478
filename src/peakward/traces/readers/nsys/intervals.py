"""Rows with a start and an end, and checks for impossible ones."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from peakward.traces.readers.nsys.database import Export
from peakward.traces.table import TOO_LARGE, Ints

Columns = dict[str, Ints]

_FURTHEST_NS = 1 << 62


def intervals(
    export: Export, table: str, required: Sequence[str], optional: Sequence[str]
) -> tuple[Columns, tuple[str, ...]]:
    """A table's columns, including `start` and `end`, and sentences on left-out rows."""
    chunks = list(export.chunks(table, ("start", "end", *required), optional))
    columns = joined([each.integers for each in chunks], ("start", "end", *required, *optional))
    kept = sound(columns["start"], columns["end"])
    n_impossible = len(kept) - int(kept.sum())
    n_mistyped = sum(each.n_left_out for each in chunks)
    return chosen(columns, kept), left_out(table, n_mistyped, n_impossible)


def sound(start_ns: Ints, end_ns: Ints) -> NDArray[np.bool_]:
    """Mask of possible intervals: the end is not before the start, and not 0, CUPTI's value for an unknown
    time."""
    near = np.ones(len(start_ns), np.bool_)
    for each in (start_ns, end_ns):
        near &= (each > -_FURTHEST_NS) & (each < _FURTHEST_NS)
    duration_ns = np.where(near, end_ns, -1) - np.where(near, start_ns, 0)
    kept: NDArray[np.bool_] = (duration_ns >= 0) & (duration_ns < TOO_LARGE) & (end_ns != 0)
    return kept


def joined(parts: Sequence[Mapping[str, Ints]], names: Sequence[str]) -> Columns:
    """The columns of several pieces, one after the other."""
    empty = np.empty(0, np.int64)
    return {name: np.concatenate([empty, *(part[name] for part in parts)]) for name in names}


def chosen(columns: Mapping[str, Ints], rows: NDArray[np.bool_]) -> Columns:
    """These rows of every column."""
    return {name: column[rows] for name, column in columns.items()}


def left_out(table: str, n_mistyped: int, n_impossible: int) -> tuple[str, ...]:
    """Sentences for `Table.limits` on rows that cannot be read."""
    causes = (
        (n_mistyped, "text, a fraction or nothing where a whole number must be"),
        (n_impossible, "an end before the start, no time, or one out of range"),
    )
    return tuple(f"rows of {table} left out for {cause}: {n}" for n, cause in causes if n)
