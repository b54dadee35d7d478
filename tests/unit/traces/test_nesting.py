import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.nesting import nest, rows_of
from peakward.traces.table import NONE, HostKind

from .rows import Rows

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
