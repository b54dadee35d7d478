"""Allocations of one device: their addresses, and the events between which they were held.

A position is a moment of the recording: 0 before its first event, i + 1 after event i. torch's history is a
ring buffer that may have lost its beginning. So the end tells which memory existed at position 0: blocks that
no event allocated, and frees of memory that no event allocated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from peakward.traces.memory.segments import ALLOCATED
from peakward.traces.memory.table import NONE, Action, Block, Flags, Ints, MemoryEvents

_KINDS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)


class Contradictions(NamedTuple):
    """Contradictions between events and segments, for example after a pause of recording."""

    n_events: int
    """Events that allocate an allocated address, or free a free one."""
    n_blocks: int
    """Blocks that only events or only segments show as allocated, or that differ in size."""
    n_bytes: int
    """Requested bytes at the end by the events, minus those by the segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Columns of equal length with one row for each allocation."""

    address: Ints
    requested_bytes: Ints
    born: Ints
    """The first position at which it is held; 0 also for memory from before the recording."""
    freed: Ints
    """The first position at which the program has freed it; `n_positions` if never."""
    released: Ints
    """The first position at which the allocator could reuse it: later than `freed` where another stream used
    it."""
    stack: Ints
    """The stack of the allocation."""
    free_stack: Ints
    block_bytes: Ints
    """The block's size for allocations that exist at the end; 0 for others."""
    n_positions: int
    contradictions: Contradictions

    def __len__(self) -> int:
        return len(self.address)

    @property
    def before(self) -> Flags:
        """Mask of the allocations from before the recording."""
        made: Flags = self.born == 0
        return made

    def alive(self, position: int) -> Flags:
        """Mask of the allocations that the program holds at a position."""
        held: Flags = (self.born <= position) & (position < self.freed)
        return held


def lifetimes(events: MemoryEvents, blocks: Sequence[Block]) -> Lifetimes:
    """The lifetimes from one device's events and its blocks at the end."""
    rows = np.flatnonzero(np.isin(events.action, _KINDS))
    rows = rows[np.argsort(events.address[rows], kind="stable")]
    action, address = events.action[rows], events.address[rows]
    again = np.r_[False, address[1:] == address[:-1]]
    previous = np.r_[NONE, action[:-1]]
    # A free without its allocation among the events begins a row, just as an allocation does.
    repeated = again & (action != Action.ALLOC) & (previous >= action)
    begins = ~again | (action == Action.ALLOC) | repeated
    row = np.cumsum(begins) - 1
    n, end = int(begins.sum()), len(events) + 1
    requested = _first(rows, row, action == Action.FREE_REQUESTED, n)
    completed = _first(rows, row, action == Action.FREE_COMPLETED, n)
    free = np.where(requested >= 0, requested, completed)
    first = rows[begins]
    has_alloc = action[begins] == Action.ALLOC
    # Where the ring begins between the two, the program had freed it before.
    asks = bool((events.action == Action.FREE_REQUESTED).any())
    let_go = ~has_alloc & (requested < 0) & (completed >= 0) & (asks | (completed == 0))
    completes = bool((events.action == Action.FREE_COMPLETED).any())
    released = completed if completes else free
    live_again = again & (action == Action.ALLOC) & (previous == Action.ALLOC)
    found = Lifetimes(
        address=address[begins],
        requested_bytes=events.n_bytes[first],
        born=np.where(has_alloc, first + 1, 0),
        freed=np.where(let_go, 0, np.where(free >= 0, free + 1, end)),
        released=np.where(released >= 0, released + 1, end),
        stack=np.where(has_alloc, events.stack[first], NONE),
        free_stack=np.where(free >= 0, events.stack[free], NONE),
        block_bytes=np.zeros(n, np.int64),
        n_positions=end,
        contradictions=Contradictions(int(repeated.sum() + live_again.sum()), 0, 0),
    )
    return _with_blocks(found, blocks)


def _first(rows: Ints, row: Ints, chosen: Flags, n: int) -> Ints:
    """For each of n rows its first chosen event, or NONE."""
    found = np.full(n, NONE, np.int64)
    found[row[chosen][::-1]] = rows[chosen][::-1]
    return found


def _with_blocks(found: Lifetimes, blocks: Sequence[Block]) -> Lifetimes:
    """Add the sizes of the blocks at the end, and rows for blocks that no event names."""
    held = [each for each in blocks if each.state == ALLOCATED]
    at = np.array([each.address for each in held], np.int64)
    sizes = np.array([each.n_bytes for each in held], np.int64)
    asked = np.array([each.requested_bytes for each in held], np.int64)
    stacks = np.array([each.stack for each in held], np.int64)
    # Rows are sorted by address, then by time: the last row of an address is what exists now.
    last = np.searchsorted(found.address, at, side="right") - 1
    known = (last >= 0) & (found.address[last] == at) if len(found) else np.zeros(len(at), bool)
    alive = known.copy()
    alive[known] = found.freed[last[known]] == found.n_positions
    sized = alive.copy()
    sized[alive] = found.requested_bytes[last[alive]] == asked[alive]
    block_bytes = found.block_bytes.copy()
    block_bytes[last[alive]] = sizes[alive]
    n_alive = int((found.freed == found.n_positions).sum())
    alone = ~alive
    wrong = int((known & ~sized).sum()) + n_alive - int(alive.sum())
    n_asked = int(found.requested_bytes[found.freed == found.n_positions].sum())
    difference = n_asked + int(asked[~known].sum()) - int(asked.sum())
    n, end = int(alone.sum()), found.n_positions
    # An address whose last event is a free was allocated again while nothing was recorded.
    born = np.where(known[alone], found.freed[last[alone]], 0) if len(found) else np.zeros(n, int)
    added = {
        "address": at[alone],
        "requested_bytes": asked[alone],
        "born": born,
        "freed": np.full(n, end),
        "released": np.full(n, end),
        "stack": stacks[alone],
        "free_stack": np.full(n, NONE),
        "block_bytes": sizes[alone],
    }
    columns = {name: getattr(found, name) for name in added} | {"block_bytes": block_bytes}
    return Lifetimes(
        **{name: np.concatenate((columns[name], added[name])) for name in added},
        n_positions=end,
        contradictions=Contradictions(found.contradictions.n_events, wrong, difference),
    )
