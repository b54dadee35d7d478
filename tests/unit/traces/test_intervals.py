"""Interval arithmetic against sets of integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.intervals import (
    NOTHING,
    Intervals,
    contains,
    covered,
    gaps,
    intersect,
    join,
    measure_before,
    nest,
    rows_of,
    self_time,
    subtract,
    total,
    union,
)
from peakward.traces.table import NONE, HostKind

from .handmade import Host, table
from .rows import Rows

pairs = st.lists(st.tuples(st.integers(-20, 20), st.integers(-5, 12)), max_size=12)


def arrays(of):
    start = np.array([a for a, _ in of], dtype=np.int64)
    return start, start + np.array([d for _, d in of], dtype=np.int64)


def made(of) -> Intervals:
    return union(*arrays(of))


def points(of) -> set[int]:
    start, end = of
    return {t for a, b in zip(start.tolist(), end.tolist(), strict=True) for t in range(a, b)}


def normal(of: Intervals) -> bool:
    flat = np.stack(of, axis=1).ravel()
    return bool(np.all(flat[1:] > flat[:-1])) and flat.dtype == np.int64


@given(pairs)
def test_union_covers_what_any_interval_covers(some):
    united = made(some)
    assert points(united) == points(arrays(some))
    assert normal(united)
    assert total(united) == len(points(united))
    assert total(united) <= sum(max(d, 0) for _, d in some)


@given(pairs, pairs)
def test_set_operations_are_those_of_sets(one, other):
    a, b = made(one), made(other)
    for result, expected in (
        (intersect(a, b), points(a) & points(b)),
        (subtract(a, b), points(a) - points(b)),
        (join(a, b), points(a) | points(b)),
    ):
        assert points(result) == expected
        assert normal(result)


@given(pairs, st.integers(-25, 35), st.integers(-25, 35))
def test_gaps_are_what_is_left_of_a_window(some, start, end):
    found = gaps(made(some), start, end)
    assert points(found) == set(range(start, end)) - points(made(some))
    assert normal(found)


@given(pairs, pairs)
def test_coverage_of_each_interval_and_instant(some, asked):
    of, (start, end) = made(some), arrays(asked)
    inside = points(of)
    assert covered(of, start, end).tolist() == [
        len(inside & set(range(a, b))) for a, b in zip(start.tolist(), end.tolist(), strict=True)
    ]
    assert measure_before(of, start).tolist() == [sum(t < at for t in inside) for at in start]
    assert contains(of, start).tolist() == [at in inside for at in start.tolist()]


def test_nothing_joins_and_intersects_to_nothing():
    assert (
        total(join())
        == total(intersect(NOTHING, NOTHING))
        == total(subtract(NOTHING, NOTHING))
        == 0
    )
    assert points(gaps(NOTHING, 3, 5)) == {3, 4}


KINDS = (HostKind.OP, HostKind.RANGE)
_ROW = st.tuples(
    st.sampled_from([HostKind.OP, HostKind.RANGE, HostKind.CALL]),
    st.sampled_from(["main", "other", "2/main"]),
    st.integers(0, 30),
    st.integers(0, 12),
)


def innermost(table, kinds, thread, at_ns):
    """For each thread and time the innermost open row of these kinds, or NONE."""
    return nest(table.host, rows_of(table.host, kinds)).innermost(thread, at_ns)


def parents(table, kinds):
    """For each row of the host the row of these kinds that it lies in; NONE elsewhere."""
    inside = nest(table.host, rows_of(table.host, kinds))
    found = np.full(len(table.host), NONE)
    found[inside.row[1:]] = inside.parents()
    return found


def names(table, rows):
    return [None if row == NONE else table.names[table.host.name[row]] for row in rows]


def test_the_innermost_of_nested_rows():
    table, _ = (
        Rows().op("a", 0, 100).op("b", 10, 50).op("c", 20, 30).op("d", 60, 61).range("r", 62, 80)
    ).table()
    at = [-1, 0, 15, 20, 29, 30, 50, 60, 61, 70, 99, 100]
    found = innermost(table, {HostKind.OP}, np.zeros(len(at), np.int32), at)
    expected = [None, "a", "b", "c", "c", "b", "a", "d", "a", "a", "a", None]
    assert names(table, found) == expected


def test_a_thread_sees_its_own_rows_alone():
    table, _ = Rows().op("a", 0, 10).op("b", 0, 10, thread="other").table()
    assert names(table, innermost(table, KINDS, [0, 1, NONE, 7], 5)) == ["a", "b", None, None]


def test_a_row_of_no_length_is_open_for_a_nanosecond():
    table, _ = Rows().op("a", 0, 10).op("b", 5, 5).table()
    assert names(table, innermost(table, KINDS, 0, [4, 5, 6])) == ["a", "b", "a"]


def test_of_rows_that_overlap_the_one_that_started_last_is_innermost():
    table, _ = Rows().range("a", 0, 10).range("b", 5, 20).range("c", 12, 15).table()
    assert names(table, innermost(table, KINDS, 0, [7, 11, 13, 16])) == ["b", "b", "c", "b"]


def test_parents_bear_ends_that_rounding_moved():
    table, _ = (
        Rows()
        .op("whole", 0, 1000)
        .op("ends late", 10, 1001)
        .op("its child", 20, 501)
        .op("the next child", 500, 900)
        .table()
    )
    assert names(table, parents(table, KINDS)) == [None, "whole", "ends late", "ends late"]


def test_a_row_is_no_parent_of_a_kind_not_asked_for():
    table, _ = Rows().op("a", 0, 10).range("r", 1, 9).op("b", 2, 8).table()
    assert names(table, parents(table, {HostKind.OP})) == [None, None, "a"]
    assert names(table, parents(table, KINDS)) == [None, "a", "r"]


def _built(drawn):
    builder = Rows().op("x", 0, 1).op("x", 0, 1, thread="other").op("x", 0, 1, thread="2/main")
    for kind, thread, start, length in drawn:
        builder.host(kind, "x", start, start + length, thread)
    return builder.table()[0]


def _rank(host, i):
    """Outer rows first."""
    return (host.start_ns[i], -host.duration_ns[i], i)


def _open_at(host, i, at):
    return host.start_ns[i] <= at < max(host.end_ns[i], host.start_ns[i] + 1)


def _last(host, candidates):
    return max(candidates, key=lambda i: _rank(host, i), default=NONE)


@given(drawn=st.lists(_ROW, max_size=25))
def test_innermost_agrees_with_looking_at_every_row(drawn):
    table = _built(drawn)
    host, threads, times = table.host, range(len(table.threads)), range(-1, 45)
    asked = np.array([(thread, at) for thread in threads for at in times])
    mine = rows_of(host, KINDS)
    expected = [
        _last(host, [i for i in mine if host.thread[i] == thread and _open_at(host, i, at)])
        for thread, at in asked
    ]
    assert innermost(table, KINDS, asked[:, 0], asked[:, 1]).tolist() == expected


@given(drawn=st.lists(_ROW, max_size=25))
def test_parents_agree_with_looking_at_every_row(drawn):
    host = (table := _built(drawn)).host
    mine = rows_of(host, KINDS)

    def parent(i):
        middle = host.start_ns[i] + host.duration_ns[i] // 2
        return _last(
            host,
            [
                j
                for j in mine
                if host.thread[i] == host.thread[j]
                and _rank(host, j) < _rank(host, i)
                and _open_at(host, j, middle)
            ],
        )

    expected = [parent(i) if i in mine else NONE for i in range(len(host))]
    assert parents(table, KINDS).tolist() == expected


def test_half_a_million_rows_nested_fifty_deep():
    table, _ = Rows().op("x", 0, 1).table()
    n, depth = 500_000, 50
    start = np.arange(n)
    length = depth - start % depth
    host = table.host.__class__(
        **{name: np.zeros(n, getattr(table.host, name).dtype) for name in table.host.__slots__}
        | {"start_ns": start, "duration_ns": length}
    )
    found = nest(host, np.arange(n)).innermost(np.zeros(n, np.int32), start)
    assert (found == start).all()


def test_a_row_has_what_no_row_in_it_has():
    trace = table(host=[Host(0, 100, "outer"), Host(10, 40, "inner"), Host(20, 30, "call")])
    during = union(np.array([5, 90]), np.array([35, 120]))
    rows, ns = self_time(trace.host, np.arange(3), during)
    assert dict(zip(rows.tolist(), ns.tolist(), strict=True)) == {0: 15, 1: 15, 2: 10, NONE: 20}


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)


def innermost_at(rows, at):
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
            row = innermost_at(rows, at)
            key = None if row is None else (rows[row].start, rows[row].end)
            expected[key] = expected.get(key, 0) + 1
    assert by_span == expected
