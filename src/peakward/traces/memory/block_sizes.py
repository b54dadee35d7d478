"""The size of each allocation's block, which torch counts as allocated, and the segments that held them.

Events record the requested size. torch rounds it up to 512 bytes and cuts the rest off the free block that it
found; in the pool of large blocks (requests over 1 MiB) only where more than 1 MiB would be left. Adjacent
free blocks are merged, so the found block reached from the allocation's address to the next allocation, or to
its segment's end. With the places of all allocations known, its size is known too (`alloc_found_block`,
`should_split`, `round_size` in CUDACachingAllocator.cpp).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.table import Action, Flags, Ints, MemoryEvents, Segment

_MIB = re.compile(r"[1-9][0-9]{0,6}")
LEAST_BYTES = 512
SMALL_BYTES = 1 << 20
"""The largest request that the pool of small blocks serves, and the largest uncut rest of other blocks."""


class BlockSizes(NamedTuple):
    """The size of each allocation's block."""

    n_bytes: Ints
    is_least: Flags
    """Marks sizes that are only a minimum: the block may be up to `SMALL_BYTES` larger."""
    n_checked: int
    """Allocations with a derived size that still exist at the end, where the segments show it."""
    n_wrong: int
    """The checked allocations whose derived size differs from the segments'."""


class SegmentLife(NamedTuple):
    """A segment of cudaMalloc, by positions (`lifetimes`)."""

    address: int
    n_bytes: int
    born: int
    freed: int


def block_sizes(
    found: Lifetimes, segments: Sequence[SegmentLife], settings: Mapping[str, Any]
) -> BlockSizes:
    """The block sizes. Sizes known at the end are taken from there, and they check the derived ones."""
    sizes = rounded(found.requested_bytes, settings.get("roundup_power2_divisions"))
    is_least = np.zeros(len(found), bool)
    if settings.get("expandable_segments") is not True:
        large = np.flatnonzero(found.requested_bytes > SMALL_BYTES)
        _uncut(
            found,
            large,
            segments,
            max_split_bytes=_max_split_bytes(settings),
            sizes=sizes,
            is_least=is_least,
        )
    ends = found.block_bytes > 0
    checked = ends & ~found.before & ~is_least
    n_wrong = int((sizes[checked] != found.block_bytes[checked]).sum())
    sizes = np.where(ends, found.block_bytes, sizes)
    return BlockSizes(sizes, is_least & ~ends, int(checked.sum()), n_wrong)


def rounded(asked_bytes: Ints, divisions: Any = None) -> Ints:
    """The sizes rounded as by `round_size`, with the settings' divisions of powers of two, which are keyed by
    the MiB where they begin."""
    sizes = np.maximum(-(-asked_bytes // LEAST_BYTES) * LEAST_BYTES, LEAST_BYTES)
    if not isinstance(divisions, dict):
        return sizes
    for name, n in divisions.items():
        if not (isinstance(name, str) and _MIB.fullmatch(name) and type(n) is int and n > 1):
            continue
        if int(name).bit_count() != 1:  # torch has no others; a file might have millions.
            continue
        # The first key also covers smaller sizes, the last one (64 GiB, beyond any size) larger ones.
        low, first = (int(name) << 20), int(name) == 1
        within = (asked_bytes < 2 * low) & ((asked_bytes >= low) | first)
        within &= asked_bytes > LEAST_BYTES * n
        for row in np.flatnonzero(within):
            sizes[row] = _to_division(int(asked_bytes[row]), n)
    return sizes


def _to_division(n_bytes: int, divisions: int) -> int:
    floor = 1 << (n_bytes.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    if n_bytes == floor:
        return n_bytes
    return -(-n_bytes // step) * step if step else 2 * floor


def _max_split_bytes(settings: Mapping[str, Any]) -> int:
    """The setting's value; -1 means that there is none."""
    value = settings.get("max_split_size")
    return value if type(value) is int and value > 0 else 1 << 62


_RELEASED, _SEGMENT_FREED, _SEGMENT_BORN, _BORN = range(4)
_AT_ONCE = 1 << 16


def _uncut(
    found: Lifetimes,
    large: Ints,
    segments: Sequence[SegmentLife],
    *,
    max_split_bytes: int,
    sizes: Ints,
    is_least: Flags,
) -> None:
    """Replay the recording with the places of large allocations, and write into `sizes` and `is_least`."""
    places = _Places(found, large, segments)
    for position, kind, index in _moves(found, large, segments):
        if kind == _RELEASED:
            places.taken.discard(int(places.rank[index]))
        elif kind == _SEGMENT_FREED:
            places.close(segments[index])
        elif kind == _SEGMENT_BORN:
            places.open(segments[index])
        else:
            row = int(large[index])
            is_least[row] = True
            if position:
                free = places.free_from(index, int(found.address[row]))
                rest = -1 if free is None else free - int(sizes[row])
                is_least[row] = rest < 0
                if rest > 0 and (rest <= SMALL_BYTES or sizes[row] >= max_split_bytes):
                    sizes[row] += rest
            places.taken.add(int(places.rank[index]))


def _moves(
    found: Lifetimes, large: Ints, segments: Sequence[SegmentLife]
) -> Iterator[tuple[int, int, int]]:
    """Position, kind, and index into `large` or `segments`, in order. At one position ends come first, so
    nothing overlaps."""
    n_large, n = len(large), len(segments)
    freed = np.array([each.freed for each in segments], np.int64)
    born = np.array([each.born for each in segments], np.int64)
    position = np.concatenate((found.released[large], freed, born, found.born[large]))
    kind = np.repeat(np.arange(4), (n_large, n, n, n_large))
    index = np.concatenate((np.arange(n_large), np.arange(n), np.arange(n), np.arange(n_large)))
    # Segments of the beginning exist before everything else.
    wanted = np.flatnonzero(
        (position < found.n_positions) & ((kind != _SEGMENT_BORN) | (position > 0))
    )
    order = wanted[np.lexsort((index[wanted], kind[wanted], position[wanted]))]
    # One after another: as Python's integers all of them would take six times as much.
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE]
        yield from zip(
            position[some].tolist(), kind[some].tolist(), index[some].tolist(), strict=True
        )


class _Places:
    """The occupied parts of each segment at one position, as ranks among all addresses that ever occur."""

    def __init__(self, found: Lifetimes, large: Ints, segments: Sequence[SegmentLife]) -> None:
        address = found.address[large]
        self._addresses, self.rank = np.unique(address, return_inverse=True)
        self.taken = RankSet(len(self._addresses))
        starts = np.array([each.address for each in segments], np.int64)
        self._starts = np.unique(starts)
        self._segment_of = np.searchsorted(self._starts, address, side="right") - 1
        self._held = RankSet(len(self._starts))
        self._ends: dict[int, int] = {}
        for each in segments:
            if each.born == 0:
                self.open(each)

    def open(self, segment: SegmentLife) -> None:
        self._held.add(self._rank(segment))
        self._ends[segment.address] = segment.address + segment.n_bytes

    def close(self, segment: SegmentLife) -> None:
        self._held.discard(self._rank(segment))
        self._ends.pop(segment.address, None)

    def free_from(self, index: int, address: int) -> int | None:
        """Bytes from there to the next allocation or the segment's end; None outside all segments."""
        rank = int(self._segment_of[index])
        start = None if rank < 0 else self._held.by(rank)
        end = address if start is None else self._ends[int(self._starts[start])]
        if end <= address:
            return None
        later = self.taken.after(int(self.rank[index]))
        return (end if later is None else min(end, int(self._addresses[later]))) - address

    def _rank(self, segment: SegmentLife) -> int:
        return int(np.searchsorted(self._starts, segment.address))


WIDTH = 1024


class RankSet:
    """Bits in words, and above them bits that say which words are not empty: three levels for 10**8.

    A sorted list moves all elements behind an insertion. With a list, a snapshot of 300,000 allocations at
    random places, none of them freed, took 7.0 s of CPU; with this set it takes 2.6 s and grows linearly.
    """

    def __init__(self, n: int) -> None:
        self._levels: list[list[int]] = []
        while not self._levels or n > 1:
            n = -(-n // WIDTH)
            self._levels.append([0] * max(n, 1))

    def add(self, rank: int) -> None:
        """Add the rank, whether or not it is there."""
        for level in self._levels:
            rank, bit = divmod(rank, WIDTH)
            before = level[rank]
            level[rank] = before | 1 << bit
            if before:
                return

    def discard(self, rank: int) -> None:
        """Remove the rank, whether or not it is there."""
        for level in self._levels:
            rank, bit = divmod(rank, WIDTH)
            level[rank] &= ~(1 << bit)
            if level[rank]:
                return

    def after(self, rank: int) -> int | None:
        """The smallest rank above this one; None where there is none."""
        for height, level in enumerate(self._levels):
            word, bit = divmod(rank, WIDTH)
            above = level[word] >> bit + 1
            if above:
                found = rank + (above & -above).bit_length()
                for below in reversed(self._levels[:height]):
                    found = found * WIDTH + (below[found] & -below[found]).bit_length() - 1
                return found
            rank = word
        return None

    def by(self, rank: int) -> int | None:
        """The largest rank up to and including this one; None where there is none."""
        bit_after = 1
        for height, level in enumerate(self._levels):
            word, bit = divmod(rank, WIDTH)
            under = level[word] & (1 << bit + bit_after) - 1
            if under:
                found = word * WIDTH + under.bit_length() - 1
                for below in reversed(self._levels[:height]):
                    found = found * WIDTH + below[found].bit_length() - 1
                return found
            rank, bit_after = word, 0
        return None


_SIGN = {
    Action.SEGMENT_ALLOC: 1,
    Action.SEGMENT_MAP: 1,
    Action.SEGMENT_FREE: -1,
    Action.SEGMENT_UNMAP: -1,
}


def segment_lives(events: MemoryEvents, segments: Sequence[Segment]) -> list[SegmentLife]:
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


def reserved_bytes(events: MemoryEvents, segments: Sequence[Segment]) -> Ints:
    """Reserved bytes at every position, computed backwards from the segments at the end."""
    sign = np.zeros(len(Action), np.int64)
    for action, value in _SIGN.items():
        sign[action] = value
    change = np.r_[0, sign[events.action] * events.n_bytes]
    end = sum(each.n_bytes for each in segments)
    return np.asarray(end - change.sum() + np.cumsum(change), np.int64)


def held_at(
    events: MemoryEvents, segments: Sequence[Segment], position: int
) -> list[tuple[int, int]]:
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
