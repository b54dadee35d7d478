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
    subtract,
    total,
    union,
)

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
