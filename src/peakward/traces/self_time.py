"""The innermost host row of a thread during given times."""

import numpy as np
from numpy.typing import NDArray

from peakward.traces.intervals import Intervals, contains
from peakward.traces.nesting import nest
from peakward.traces.table import NONE, HostColumns, Ints


def self_time(
    host: HostColumns, rows: NDArray[np.intp], during: Intervals
) -> tuple[NDArray[np.intp], Ints]:
    """The nanoseconds of `during` for which each host row was the innermost of `rows`, all of one thread.

    The innermost of the running rows began last, or is the shortest of those that did. Row NONE has the time
    outside all rows. Rows without any time are left out; the times add up to `during`.
    """
    rows = rows[host.duration_ns[rows] > 0]
    starts, ends = host.start_ns[rows], host.end_ns[rows]
    edges = np.sort(np.concatenate((starts, ends, during.start, during.end)), kind="stable")
    left, right = edges[:-1], edges[1:]
    inside = (right > left) & contains(during, left)
    left, right = left[inside], right[inside]
    at = nest(host, rows).innermost(host.thread[rows[:1]] if len(rows) else NONE, left)
    # Place 0 is for the time in no row.
    time = np.bincount(at + 1, weights=right - left, minlength=1).astype(np.int64)
    innermost = np.flatnonzero(time) - 1
    return innermost, time[innermost + 1]
