"""How large the block of each allocation was: what torch counts as allocated.

Events say what was asked for. torch rounds that up to 512 bytes, and cuts the rest off the free block
it found: in the pool of large blocks (asked for over 1 MiB) only where more than 1 MiB would be left.
Free blocks that touch are one, so the block found reached from the allocation's address to the next
allocation, or its segment's end: with the places of all allocations known, so is its size
(`alloc_found_block`, `should_split`, `round_size` in CUDACachingAllocator.cpp).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.rank_set import RankSet
from peakward.traces.memory.segment_lives import SegmentLife
from peakward.traces.memory.table import Flags, Ints

_MIB = re.compile(r"[1-9][0-9]{0,6}")

LEAST_BYTES = 512
SMALL_BYTES = 1 << 20
"""The most that is served from the pool of small blocks, and the most that is left uncut of others."""


class BlockSizes(NamedTuple):
    """Of each allocation."""

    n_bytes: Ints
    is_least: Flags
    """Where only the least is known: the most is `SMALL_BYTES` more."""
    n_checked: int
    """Allocations whose size was worked out and that are there at the end, where the segments tell it."""
    n_wrong: int
    """Those of them that the segments contradict."""


def block_sizes(
    found: Lifetimes, segments: Sequence[SegmentLife], settings: Mapping[str, Any]
) -> BlockSizes:
    """What is known at the end is taken from there; what was worked out is held against it."""
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
    """As `round_size` does, with the settings' divisions of powers of two, by the MiB they begin at."""
    sizes = np.maximum(-(-asked_bytes // LEAST_BYTES) * LEAST_BYTES, LEAST_BYTES)
    if not isinstance(divisions, dict):
        return sizes
    for name, n in divisions.items():
        if not (isinstance(name, str) and _MIB.fullmatch(name) and type(n) is int and n > 1):
            continue
        if int(name).bit_count() != 1:  # torch has none such; a file might have millions.
            continue
        # The first holds for what is smaller too, the last (64 GiB is beyond any) for what is larger.
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
    """-1 says that there is none."""
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
    """Go through the recording with the places of large allocations; write into the last two."""
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
    """Position, kind, and which of `large` or `segments`, in order. At one position nothing lies in
    the same place twice: what ends goes first."""
    n_large, n = len(large), len(segments)
    freed = np.array([each.freed for each in segments], np.int64)
    born = np.array([each.born for each in segments], np.int64)
    position = np.concatenate((found.released[large], freed, born, found.born[large]))
    kind = np.repeat(np.arange(4), (n_large, n, n, n_large))
    index = np.concatenate((np.arange(n_large), np.arange(n), np.arange(n), np.arange(n_large)))
    # Segments of the beginning are there before all else.
    wanted = np.flatnonzero(
        (position < found.n_positions) & ((kind != _SEGMENT_BORN) | (position > 0))
    )
    order = wanted[np.lexsort((index[wanted], kind[wanted], position[wanted]))]
    # By and by: as Python's integers all of them would take six times as much.
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE]
        yield from zip(
            position[some].tolist(), kind[some].tolist(), index[some].tolist(), strict=True
        )


class _Places:
    """What is taken of which segments at one position, by the ranks of all addresses there ever are."""

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
