"""The allocator's rules, one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.prediction.memory.replay import MIB, CachingAllocator, OverLimitError, Replay, replay
from peakward.prediction.memory.timeline import Timeline
from peakward.records.memory import MemorySplit


@pytest.mark.parametrize(
    ("asked", "given_", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (9 * MIB, 9 * MIB, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # The rest is over 1 MiB: split off.
        (11 * MIB, 12 * MIB, 12 * MIB),  # The rest is 1 MiB: given too.
    ],
)
def test_a_request_of_a_fresh_process(asked, given_, reserved):
    allocator = CachingAllocator()
    assert allocator.take(asked).n_bytes == given_
    assert allocator.reserved_bytes == reserved


def test_the_best_fit_is_taken_before_a_new_segment():
    allocator = CachingAllocator()
    large, small = allocator.take(40 * MIB), allocator.take(30 * MIB)
    allocator.give_back(large)
    allocator.give_back(small)
    assert allocator.take(28 * MIB).segment == small.segment
    assert allocator.reserved_bytes == 70 * MIB


@pytest.mark.parametrize("size", [2**44, 2**68])
def test_of_the_largest_segments_free_blocks_are_told_apart(size):
    """2¹⁶ sequences of 2²⁰ tokens by 2¹⁰ heads have scores of 2⁶⁸ bytes."""
    allocator = CachingAllocator()
    for each in [allocator.take(2 * size) for _ in range(2)]:
        allocator.give_back(each)
    first, second, third, _ = [allocator.take(size) for _ in range(4)]
    assert (first.segment, second.segment, third.segment) == (1, 1, 2)
    allocator.give_back(second)
    allocator.give_back(third)
    again = {(each.segment, each.address) for each in (allocator.take(size), allocator.take(size))}
    assert again == {(1, size), (2, 0)}


def test_small_requests_share_no_segment_with_large_ones():
    allocator = CachingAllocator()
    allocator.give_back(allocator.take(40 * MIB))
    allocator.take(MIB)
    assert allocator.reserved_bytes == 42 * MIB


def test_free_neighbours_become_one():
    allocator = CachingAllocator()
    parts = [allocator.take(4 * MIB) for _ in range(5)]
    assert allocator.reserved_bytes == 20 * MIB
    for i in (0, 2, 4, 1, 3):
        allocator.give_back(parts[i])
    assert allocator.take(20 * MIB).n_bytes == 20 * MIB
    assert allocator.reserved_bytes == 20 * MIB


def test_near_the_limit_free_segments_are_returned():
    allocator = CachingAllocator(64 * MIB)
    free, kept = allocator.take(30 * MIB), allocator.take(20 * MIB)
    allocator.give_back(free)
    allocator.take(40 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    with pytest.raises(OverLimitError):
        allocator.take(10 * MIB)
    allocator.give_back(kept)
    allocator.take(10 * MIB)
    assert allocator.reserved_bytes == 60 * MIB  # In the segment that was free again.


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.booleans()), max_size=60))
def test_what_is_given_back_can_be_returned_whole(requests):
    allocator = CachingAllocator()
    held = []
    for n_bytes, frees in requests:
        held.append(allocator.take(n_bytes))
        assert held[-1].n_bytes >= n_bytes
        assert sum(each.n_bytes for each in held) <= allocator.reserved_bytes
        if frees:
            allocator.give_back(held.pop(0))
    for each in held:
        allocator.give_back(each)
    allocator._return_free_segments()
    assert allocator.reserved_bytes == 0


# A timeline through the allocator.


def line():
    made = Timeline()
    made.keep(made.op(16 * MIB, category="parameters"))
    made.enter("forward")
    x = made.op(11 * MIB)
    made.enter("backward")
    made.op(100, *made.saved(x))
    made.enter("optimizer")
    made.op(24 * MIB)
    return made


def test_the_fullest_moment_and_what_it_holds():
    assert replay(line().lifetimes()) == Replay(
        phase="optimizer",
        split=MemorySplit(parameters_bytes=16 * MIB, temporaries_bytes=24 * MIB),
        reserved_bytes=(16 + 12 + 2 + 24) * MIB,
    )


def test_what_the_allocator_adds_is_told_apart():
    made = line()
    made.enter("backward")
    x = made.op(30 * MIB)
    made.op(100, *made.saved(x))
    found = replay(made.lifetimes())
    assert (found.phase, found.split) == (
        "backward",
        MemorySplit(
            parameters_bytes=16 * MIB,
            activations_bytes=30 * MIB,
            temporaries_bytes=100,
            rounding_bytes=512 - 100,
        ),
    )


def test_a_limit_is_kept_by_returning_free_segments():
    assert replay(line().lifetimes(), 40 * MIB).reserved_bytes == 40 * MIB
    with pytest.raises(OverLimitError):
        replay(line().lifetimes(), 39 * MIB)
