"""The memory held at every position of the recording."""

from typing import NamedTuple

import numpy as np

from peakward.records.memory_snapshot import MemoryBalance
from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.table import Ints


class Balances(NamedTuple):
    """Bytes at each position; there is one more position than events."""

    allocated: Ints
    active: Ints
    reserved: Ints
    requested: Ints

    def at(self, position: int) -> MemoryBalance:
        """All four balances at a position."""
        return MemoryBalance(
            allocated_bytes=int(self.allocated[position]),
            active_bytes=int(self.active[position]),
            reserved_bytes=int(self.reserved[position]),
            requested_bytes=int(self.requested[position]),
        )


def balances(found: Lifetimes, block_bytes: Ints, reserved: Ints) -> Balances:
    """The balances. `block_bytes` has an entry for each allocation; `reserved` is by position
    (`segment_lives.reserved_bytes`)."""
    return Balances(
        allocated=_held(found.born, found.freed, block_bytes, found.n_positions),
        active=_held(found.born, found.released, block_bytes, found.n_positions),
        reserved=reserved,
        requested=_held(found.born, found.freed, found.requested_bytes, found.n_positions),
    )


def _held(born: Ints, gone: Ints, n_bytes: Ints, n_positions: int) -> Ints:
    change = np.zeros(n_positions + 1, np.int64)
    np.add.at(change, born, n_bytes)
    np.subtract.at(change, gone, n_bytes)
    return np.cumsum(change[:-1])
