"""Sets of time as half-open intervals [start, end) of integer nanoseconds.

Every function that returns `Intervals` returns normal ones: sorted, none empty, none touching another. Every
function that takes them expects normal ones, so times from a trace go through `union` first.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Intervals(NamedTuple):
    """A set of time: two arrays of equal length, normal as the module defines."""

    start: Ints
    end: Ints


def _ints(values: Ints | list[int]) -> Ints:
    return np.asarray(values, dtype=np.int64)


NOTHING = Intervals(_ints([]), _ints([]))


def union(start: Ints, end: Ints) -> Intervals:
    """The time covered by at least one interval. An interval that ends where it starts covers none."""
    some = end > start
    order = np.argsort(start[some], kind="stable")
    start, end = start[some][order], end[some][order]
    if not len(start):
        return NOTHING
    covered_until = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > covered_until[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(start[first], covered_until[last])


def join(*sets: Intervals) -> Intervals:
    """The time in at least one of the sets."""
    return union(
        np.concatenate([NOTHING.start, *(each.start for each in sets)]),
        np.concatenate([NOTHING.end, *(each.end for each in sets)]),
    )


def total(of: Intervals) -> int:
    """The number of nanoseconds in the set."""
    return int((of.end - of.start).sum())


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The time in both sets."""
    at = np.concatenate((a.start, b.start, a.end, b.end))
    n_starts = len(a.start) + len(b.start)
    step = np.ones(len(at), dtype=np.int64)
    step[n_starts:] = -1
    order = np.argsort(at, kind="stable")
    at, depth = at[order], np.cumsum(step[order])
    both = (depth[:-1] == 2) & (at[1:] > at[:-1])
    return Intervals(at[:-1][both], at[1:][both])


def gaps(of: Intervals, start: int, end: int) -> Intervals:
    """The time of [start, end) outside the set."""
    inside = (of.end > start) & (of.start < end)
    starts = np.concatenate(([start], of.end[inside]))
    ends = np.concatenate((of.start[inside], [end]))
    some = ends > starts
    return Intervals(starts[some], ends[some])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The time in `a` that is not in `b`."""
    if not len(a.start):
        return NOTHING
    return intersect(a, gaps(b, int(a.start[0]), int(a.end[-1])))


def measure_before(of: Intervals, at: Ints) -> Ints:
    """For each instant, the nanoseconds of the set before it."""
    if not len(of.start):
        return np.zeros(len(at), dtype=np.int64)
    whole = np.concatenate(([0], np.cumsum(of.end - of.start)))
    begun = np.searchsorted(of.start, at, side="right")
    last = np.maximum(begun - 1, 0)
    after_its_start = np.minimum(at, of.end[last]) - of.start[last]
    return np.where(begun > 0, whole[last] + after_its_start, 0)


def covered(of: Intervals, start: Ints, end: Ints) -> Ints:
    """For each interval [start, end), the nanoseconds of it in the set. The intervals may overlap, and one
    that ends before it starts counts as empty."""
    end = np.maximum(start, end)
    return measure_before(of, end) - measure_before(of, start)


def contains(of: Intervals, at: Ints) -> NDArray[np.bool_]:
    """For each instant, whether it lies in the set."""
    if not len(of.start):
        return np.zeros(len(at), dtype=np.bool_)
    begun = np.searchsorted(of.start, at, side="right")
    return (begun > 0) & (at < of.end[np.maximum(begun - 1, 0)])
