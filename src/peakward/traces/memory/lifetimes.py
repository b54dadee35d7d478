"""Allocations of one device: where each lay, and from which event to which it was held.

A position is a moment of the recording: 0 before its first event, i + 1 after event i. The history
of torch is a ring that may have lost its beginning, so what was there at position 0 is told by the
end: blocks that no event made, and frees of what no event made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from peakward.traces.memory.segments import ALLOCATED
from peakward.traces.memory.table import NONE, Action, Block, Events, Flags, Ints

_KINDS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)


class Contradictions(NamedTuple):
    """What events and segments say of one another that cannot be, as after a pause of recording."""

    n_events: int
    """Of addresses allocated while allocated, or freed while free."""
    n_blocks: int
    """Of blocks that are allocated by only one of events and segments, or differ in size."""
    n_bytes: int
    """Allocated at the end by the events less by the segments, as asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Equally long columns, one row an allocation."""

    address: Ints
    requested_bytes: Ints
    born: Ints
    """The first position at which it is held; 0 also for what was made before the recording."""
    freed: Ints
    """The first position at which the program has let it go; `n_positions` if never."""
    released: Ints
    """The same for when the allocator could use it again: later where another stream used it."""
    stack: Ints
    """Of the allocation."""
    free_stack: Ints
    block_bytes: Ints
    """Of those there at the end their block's; 0 of others."""
    n_positions: int
    contradictions: Contradictions

    def __len__(self) -> int:
        return len(self.address)

    @property
    def before(self) -> Flags:
        """Which were made before the recording."""
        made: Flags = self.born == 0
        return made

    def alive(self, position: int) -> Flags:
        """Which the program holds there."""
        held: Flags = (self.born <= position) & (position < self.freed)
        return held


def lifetimes(events: Events, blocks: Sequence[Block]) -> Lifetimes:
    """Of the events of one device, and its blocks at the end."""
    rows = np.flatnonzero(np.isin(events.action, _KINDS))
    rows = rows[np.argsort(events.address[rows], kind="stable")]
    action, address = events.action[rows], events.address[rows]
    again = np.r_[False, address[1:] == address[:-1]]
    previous = np.r_[NONE, action[:-1]]
    # A free whose allocation is not among the events begins a row as an allocation does.
    repeated = again & (action != Action.ALLOC) & (previous >= action)
    begins = ~again | (action == Action.ALLOC) | repeated
    row = np.cumsum(begins) - 1
    n, end = int(begins.sum()), len(events) + 1
    requested = _first(rows, row, action == Action.FREE_REQUESTED, n)
    completed = _first(rows, row, action == Action.FREE_COMPLETED, n)
    free = np.where(requested >= 0, requested, completed)
    first = rows[begins]
    has_alloc = action[begins] == Action.ALLOC
    # Where the ring begins between the two, the program had let it go before.
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
    """For each of n rows the first of its chosen events, or NONE."""
    found = np.full(n, NONE, np.int64)
    found[row[chosen][::-1]] = rows[chosen][::-1]
    return found


def _with_blocks(found: Lifetimes, blocks: Sequence[Block]) -> Lifetimes:
    """Sizes of the blocks that are there at the end, and rows of those that no event names."""
    held = [each for each in blocks if each.state == ALLOCATED]
    at = np.array([each.address for each in held], np.int64)
    sizes = np.array([each.n_bytes for each in held], np.int64)
    asked = np.array([each.requested_bytes for each in held], np.int64)
    stacks = np.array([each.stack for each in held], np.int64)
    # Rows are in order of address, then of time: the last of an address is what lies there now.
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
    # An address that events freed last was allocated again while nothing was recorded.
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
