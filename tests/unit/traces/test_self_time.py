"""Time by the innermost row, against a count of every nanosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.intervals import total, union
from peakward.traces.self_time import self_time
from peakward.traces.table import NONE

from .handmade import Host, table


def test_a_row_has_what_no_row_in_it_has():
    trace = table(host=[Host(0, 100, "outer"), Host(10, 40, "inner"), Host(20, 30, "call")])
    during = union(np.array([5, 90]), np.array([35, 120]))
    rows, ns = self_time(trace.host, np.arange(3), during)
    assert dict(zip(rows.tolist(), ns.tolist(), strict=True)) == {0: 15, 1: 15, 2: 10, NONE: 20}


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)


def innermost(rows, at):
    return max(
        (i for i, row in enumerate(rows) if row.start <= at < row.end),
        key=lambda i: (rows[i].start, -rows[i].end),
        default=None,
    )


@given(spans, spans)
def test_times_sum_to_the_whole(some, asked):
    rows = sorted((Host(s, s + d) for s, d in some), key=lambda row: row.start)
    trace = table(host=rows)
    during = union(
        np.array([s for s, _ in asked], dtype=np.int64),
        np.array([s + d for s, d in asked], dtype=np.int64),
    )
    found, ns = self_time(trace.host, np.arange(len(rows)), during)
    assert ns.sum() == total(during)
    by_span: dict[tuple[int, int] | None, int] = {}
    for row, time in zip(found.tolist(), ns.tolist(), strict=True):
        key = None if row == NONE else (rows[row].start, rows[row].end)
        by_span[key] = by_span.get(key, 0) + time
    expected: dict[tuple[int, int] | None, int] = {}
    for start, end in zip(during.start.tolist(), during.end.tolist(), strict=True):
        for at in range(start, end):
            row = innermost(rows, at)
            key = None if row is None else (rows[row].start, rows[row].end)
            expected[key] = expected.get(key, 0) + 1
    assert by_span == expected
