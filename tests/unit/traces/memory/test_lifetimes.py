"""Allocations by hand: what begins, what ends, what contradicts."""

import numpy as np
import pytest

from peakward.traces.memory.lifetimes import lifetimes
from peakward.traces.memory.table import NONE, Action, Block, MemoryEvents

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


def events(*moves):
    """(action, address) each, of 100 bytes at address 0 and so on."""
    action, address = (np.array(each, np.int64) for each in zip(*moves, strict=True))
    n = len(moves)
    return MemoryEvents(
        device=np.zeros(n, np.int64),
        action=action,
        address=address,
        n_bytes=np.full(n, 100),
        time_us=np.arange(n),
        stack=np.arange(n),
        has_forward=np.zeros(n, bool),
    )


def block(address, n_bytes=512, asked=100, state="active_allocated"):
    return Block(address, n_bytes, asked, state, NONE)


def rows(found):
    columns = found.address, found.born, found.freed, found.released
    return sorted(zip(*(each.tolist() for each in columns), strict=True))


@pytest.mark.parametrize(
    ("moves", "blocks", "expected"),
    [
        (((A, 0), (R, 0), (C, 0)), (), [(0, 1, 2, 3)]),
        (((A, 0),), (block(0),), [(0, 1, 2, 2)]),
        (((R, 0), (C, 0)), (), [(0, 0, 1, 2)]),
        (((C, 0),), (), [(0, 0, 0, 1)]),
        (((R, 0), (C, 0), (A, 0)), (block(0),), [(0, 0, 1, 2), (0, 3, 4, 4)]),
        (((A, 0), (R, 0)), (block(0, state="active_awaiting_free"),), [(0, 1, 2, 2)]),
        (((A, 8),), (block(0), block(8)), [(0, 0, 2, 2), (8, 1, 2, 2)]),
        (((A, 0), (C, 0)), (), [(0, 1, 2, 2)]),
        (((A, 0), (A, 8), (R, 8), (R, 0), (C, 0), (C, 8)), (), [(0, 1, 4, 5), (8, 2, 3, 6)]),
    ],
)
def test_where_each_begins_and_ends(moves, blocks, expected):
    found = lifetimes(events(*moves), blocks)
    # Without any completed free the request is where the block is free again.
    assert rows(found) == expected
    assert found.contradictions == (0, 0, 0)


@pytest.mark.parametrize(
    ("moves", "blocks", "expected"),
    [
        (((A, 0), (A, 0)), (block(0),), (1, 1, 100)),
        (((A, 0), (R, 0), (C, 0), (R, 0), (C, 0)), (), (1, 0, 0)),
        (((A, 0),), (), (0, 1, 100)),
        (((A, 0), (R, 0), (C, 0)), (block(0),), (0, 1, -100)),
        (((A, 0),), (block(0, asked=90),), (0, 1, 10)),
    ],
)
def test_what_cannot_be_is_counted(moves, blocks, expected):
    assert lifetimes(events(*moves), blocks).contradictions == expected


def test_stacks_of_both_ends_and_sizes_of_blocks():
    found = lifetimes(events((A, 0), (R, 0), (C, 0), (A, 8)), (block(8, n_bytes=1024),))
    assert found.stack.tolist() == [0, 3]
    assert found.free_stack.tolist() == [1, NONE]
    assert found.block_bytes.tolist() == [0, 1024]
    assert found.alive(4).tolist() == [False, True]
    assert not found.before.any()
