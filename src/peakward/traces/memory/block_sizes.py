"""How large the block of each allocation was: what torch counts as allocated.

Events say what was asked for. torch rounds that up to 512 bytes, and cuts the rest off the free block
it found: in the pool of large blocks (asked for over 1 MiB) only where more than 1 MiB would be left.
Free blocks that touch are one, so the block found reached from the allocation's address to the next
allocation, or its segment's end: with the places of all allocations known, so is its size
(`alloc_found_block`, `should_split`, `round_size` in CUDACachingAllocator.cpp).
"""

import bisect
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.segment_lives import SegmentLife
from peakward.traces.memory.table import Flags, Ints

_MIB = re.compile(r"[0-9]{1,9}")

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
    ends = {each.address: each.address + each.n_bytes for each in segments if each.born == 0}
    # At one position nothing lies in the same place twice: what ends goes first.
    moves = [(int(found.released[row]), 0, int(row)) for row in large]
    moves += [(each.freed, 1, -1 - index) for index, each in enumerate(segments)]
    moves += [(each.born, 2, -1 - index) for index, each in enumerate(segments) if each.born]
    moves += [(int(found.born[row]), 3, int(row)) for row in large]
    moves.sort()
    taken: list[int] = []
    starts = sorted(ends)
    for position, kind, row in moves:
        if position >= found.n_positions:
            break
        if kind == 0:
            at = bisect.bisect_left(taken, found.address[row])
            if at < len(taken) and taken[at] == found.address[row]:
                del taken[at]
        elif kind == 1:
            address = segments[-1 - row].address
            if ends.pop(address, None) is not None:
                starts.remove(address)
        elif kind == 2:
            address = segments[-1 - row].address
            if address not in ends:
                bisect.insort(starts, address)
            ends[address] = address + segments[-1 - row].n_bytes
        else:
            address = int(found.address[row])
            if position:
                free = _free_from(address, taken, starts, ends)
                rest = -1 if free is None else free - int(sizes[row])
                is_least[row] = rest < 0
                if rest > 0 and (rest <= SMALL_BYTES or sizes[row] >= max_split_bytes):
                    sizes[row] += rest
            else:
                is_least[row] = True
            bisect.insort(taken, address)


def _free_from(
    address: int, taken: list[int], starts: list[int], ends: dict[int, int]
) -> int | None:
    """Bytes from there to the next allocation or the segment's end; None outside all segments."""
    at = bisect.bisect_right(starts, address) - 1
    if at < 0 or ends[starts[at]] <= address:
        return None
    end = ends[starts[at]]
    later = bisect.bisect_right(taken, address)
    return min(end, taken[later]) - address if later < len(taken) else end - address
