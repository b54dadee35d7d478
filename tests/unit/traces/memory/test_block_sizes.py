"""Rounding as torch's `round_size` does it; what is cut is tested in `test_device_memory`."""

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.memory import block_sizes
from peakward.traces.memory.block_sizes import RankSet, held_at, rounded, segment_lives
from peakward.traces.memory.memory import Memory
from peakward.traces.memory.snapshot_file import read

from .allocator import MIB, busy
from .files import real, written


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


def test_what_is_held_at_every_moment_adds_up(tmp_path):
    (device,) = Memory(read(written(tmp_path, busy(11, 200).snapshot()))).devices
    for position in range(0, len(device.events) + 1, 7):
        held = held_at(device.events, device.segments, position)
        assert sum(high - low for low, high in held) == device.balances.reserved[position]
        lives = segment_lives(device.events, device.segments)
        assert sum(each.n_bytes for each in lives if each.born <= position < each.freed) == sum(
            high - low for low, high in held
        )


def test_expandable_segments_grow_and_shrink():
    (device,) = Memory(read(real("expandable"))).devices
    for position in range(0, len(device.events) + 1, 97):
        held = held_at(device.events, device.segments, position)
        assert sum(high - low for low, high in held) == device.balances.reserved[position]
    assert len(held_at(device.events, device.segments, len(device.events))) == 2


def test_parts_given_back_from_the_middle(tmp_path):
    events = [
        {"action": action, "addr": at * 2 * MIB, "size": n * 2 * MIB, "time_us": 1}
        for action, at, n in (("segment_map", 8, 6), ("segment_unmap", 10, 2))
    ]
    segments = [
        {
            "address": at * 2 * MIB,
            "total_size": 4 * MIB,
            "is_expandable": True,
            "blocks": [{"size": 4 * MIB, "state": "inactive"}],
        }
        for at in (8, 12)
    ]
    value = {"segments": segments, "device_traces": [events]}
    (device,) = Memory(read(written(tmp_path, value))).devices
    assert [
        [
            (low // (2 * MIB), high // (2 * MIB))
            for low, high in held_at(device.events, device.segments, at)
        ]
        for at in (0, 1, 2)
    ] == [[], [(8, 14)], [(8, 10), (12, 14)]]
    assert np.array_equal(device.balances.reserved, [0, 12 * MIB, 8 * MIB])
