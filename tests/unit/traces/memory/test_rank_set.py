"""A set of ranks against a sorted list."""

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.memory import rank_set
from peakward.traces.memory.rank_set import RankSet

N = 40


@pytest.fixture(scope="module", autouse=True)
def narrow():
    """Words of three bits, so that forty ranks take four levels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_set, "WIDTH", 3)
        yield


@given(st.lists(st.tuples(st.booleans(), st.integers(0, N - 1)), max_size=60))
def test_neighbours_are_those_of_a_sorted_list(moves):
    found, peer = RankSet(N), []
    for adds, rank in moves:
        if adds:
            found.add(rank)
            peer = sorted({*peer, rank})
        else:
            found.discard(rank)
            peer = [each for each in peer if each != rank]
        for each in range(N):
            at = bisect.bisect_right(peer, each)
            assert found.after(each) == (peer[at] if at < len(peer) else None)
            assert found.by(each) == (peer[at - 1] if at else None)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9, 10])
def test_any_number_of_ranks(n):
    found = RankSet(n)
    assert found.after(0) is None
    for rank in range(n):
        found.add(rank)
    assert [found.after(rank) for rank in range(n)] == [*range(1, n), None][:n]
    assert [found.by(rank) for rank in range(n)] == list(range(n))
