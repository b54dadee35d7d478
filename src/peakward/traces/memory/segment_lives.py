"""The memory that the allocator held: one device's segments between the events that created and freed them,
and their total."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from peakward.traces.memory.table import Action, Events, Ints, Segment

_SIGN = {
    Action.SEGMENT_ALLOC: 1,
    Action.SEGMENT_MAP: 1,
    Action.SEGMENT_FREE: -1,
    Action.SEGMENT_UNMAP: -1,
}


class SegmentLife(NamedTuple):
    """A segment of cudaMalloc, by positions (`lifetimes`)."""

    address: int
    n_bytes: int
    born: int
    freed: int


def segment_lives(events: Events, segments: Sequence[Segment]) -> list[SegmentLife]:
    """All segments but expandable ones, whose parts come and go."""
    end = len(events) + 1
    # The loop runs backwards from the end, because the ring buffer may lack the beginning.
    held = {each.address: (each.n_bytes, end) for each in segments if not each.is_expandable}
    lives = []
    chosen = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    for row in np.flatnonzero(chosen)[::-1].tolist():
        address, n_bytes = int(events.address[row]), int(events.n_bytes[row])
        if events.action[row] == Action.SEGMENT_FREE:
            held[address] = n_bytes, row + 1
        elif address in held:
            lives.append(SegmentLife(address, held[address][0], row + 1, held.pop(address)[1]))
    lives += [SegmentLife(address, n_bytes, 0, freed) for address, (n_bytes, freed) in held.items()]
    return lives


def reserved_bytes(events: Events, segments: Sequence[Segment]) -> Ints:
    """Reserved bytes at every position, computed backwards from the segments at the end."""
    sign = np.zeros(len(Action), np.int64)
    for action, value in _SIGN.items():
        sign[action] = value
    change = np.r_[0, sign[events.action] * events.n_bytes]
    end = sum(each.n_bytes for each in segments)
    return np.asarray(end - change.sum() + np.cumsum(change), np.int64)


def held_at(events: Events, segments: Sequence[Segment], position: int) -> list[tuple[int, int]]:
    """Address ranges held at a position, each from its first byte to behind its last. Adjacent parts of
    expandable segments are one range."""
    plain = {
        each.address: each.address + each.n_bytes for each in segments if not each.is_expandable
    }
    parts = [(each.address, each.address + each.n_bytes) for each in segments if each.is_expandable]
    chosen = np.isin(events.action, list(_SIGN))
    for row in np.flatnonzero(chosen)[::-1].tolist():
        if row < position:
            break
        start, action = int(events.address[row]), events.action[row]
        stop = start + int(events.n_bytes[row])
        if action == Action.SEGMENT_ALLOC:
            plain.pop(start, None)
        elif action == Action.SEGMENT_FREE:
            plain[start] = stop
        else:
            parts = _without(parts, start, stop)
            parts += [(start, stop)] if action == Action.SEGMENT_UNMAP else []
    return sorted([*plain.items(), *_joined(parts)])


def _without(parts: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    cut = []
    for low, high in parts:
        cut += [(low, min(high, start))] if low < start else []
        cut += [(max(low, stop), high)] if high > stop else []
    return cut


def _joined(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(parts):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined
