"""Rounding as torch's `round_size` does it; what is cut is tested in `test_device_memory`."""

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.memory import block_sizes
from peakward.traces.memory.block_sizes import RankSet, rounded

MIB = 1 << 20


@pytest.mark.parametrize(
    ("asked", "size"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_to_512_bytes(asked, size):
    assert rounded(np.array([asked])).tolist() == [size]


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        # torch's own example: 1200 with 4 divisions between 1024 and 2048 is 1280, were it larger
        # than 512 * 4; from there on it is.
        (1200, 1536),
        (3 * MIB, 3 * MIB),
        (2 * MIB + 1, 2 * MIB + MIB // 2),
        (4 * MIB, 4 * MIB),
        (5 * MIB + 7, 6 * MIB),
        (2049, 2560),
    ],
)
def test_to_divisions_of_powers_of_two(asked, size):
    divisions = {str(1 << power): 4 for power in range(16)}
    assert rounded(np.array([asked]), divisions).tolist() == [size]


def test_divisions_hold_where_they_begin_until_the_next():
    divisions = {"1": 0, "2": 2, "4": 0, "x": 3, "8": "a", "²": 2, "9" * 5000: 2, "3": 2, "02": 4}
    asked = np.array([MIB + 1, 2 * MIB + 1, 4 * MIB + 1])
    assert rounded(asked, divisions).tolist() == [MIB + 512, 3 * MIB, 4 * MIB + 512]


N = 40


@pytest.fixture(scope="module", autouse=True)
def narrow():
    """Words of three bits, so that forty ranks take four levels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_sizes, "WIDTH", 3)
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
