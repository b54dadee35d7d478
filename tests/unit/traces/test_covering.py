"""The innermost interval around another, against a plain search."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.covering import innermost, last_covering
from peakward.traces.table import NONE

from .handmade import Host, table

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=20)


@given(spans, spans)
def test_last_covering_is_the_last_that_covers(some, asked):
    some.sort()
    start = np.array([s for s, _ in some], dtype=np.int64)
    end = start + np.array([d for _, d in some], dtype=np.int64)
    since = np.array([s for s, _ in asked], dtype=np.int64)
    until = since + np.array([d for _, d in asked], dtype=np.int64)
    expected = [
        max((at for at, (s, d) in enumerate(some) if s <= a and s + d >= a + n), default=NONE)
        for a, n in asked
    ]
    assert last_covering(start, end, since, until).tolist() == expected


def test_innermost_on_the_same_thread():
    rows = [
        Host(0, 100, "outer"),
        Host(10, 50, "middle"),
        Host(10, 40, "inner"),
        Host(12, 20, "call"),
        Host(12, 20, "elsewhere", thread=1),
        Host(45, 60, "across"),
        Host(99, 101, "outside"),
    ]
    trace = table(host=rows, threads=[0, 0])
    found = innermost(trace.host, np.array([0, 1, 2]), np.array([3, 4, 5, 6]))
    assert found.tolist() == [2, NONE, 0, NONE]


def test_nothing_around_nothing():
    trace = table(host=[Host(0, 1)])
    none = np.array([], dtype=np.intp)
    assert innermost(trace.host, none, np.array([0])).tolist() == [NONE]
    assert innermost(trace.host, np.array([0]), none).tolist() == []
