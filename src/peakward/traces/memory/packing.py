"""How well segments are filled: by kind at the end, by free pieces at any moment."""

from collections.abc import Sequence

import numpy as np

from peakward.records.memory_snapshot import SegmentKind
from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.segments import ALLOCATED, INACTIVE
from peakward.traces.memory.table import Ints, Segment


def segment_kinds(segments: Sequence[Segment]) -> tuple[SegmentKind, ...]:
    """The segments at the end by kind, the kind with the most memory first."""
    by_name: dict[str, list[Segment]] = {}
    for each in segments:
        by_name.setdefault(_name(each), []).append(each)
    kinds = [_kind(name, those) for name, those in by_name.items()]
    return tuple(sorted(kinds, key=lambda each: -each.reserved_bytes))


def _name(segment: Segment) -> str:
    name = f"{segment.kind} blocks"
    if segment.is_expandable:
        name += ", expandable"
    if segment.pool != (0, 0):
        name += f", private pool {segment.pool[0]}.{segment.pool[1]}"
    return name


def _kind(name: str, segments: Sequence[Segment]) -> SegmentKind:
    blocks = [block for each in segments for block in each.blocks]
    free = [each.n_bytes for each in blocks if each.state == INACTIVE]
    split = [
        block.n_bytes
        for each in segments
        if len(each.blocks) > 1
        for block in each.blocks
        if block.state == INACTIVE
    ]
    return SegmentKind(
        name=name,
        n=len(segments),
        reserved_bytes=sum(each.n_bytes for each in segments),
        allocated_bytes=sum(each.n_bytes for each in blocks if each.state == ALLOCATED),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
        n_split=len(split),
        split_bytes=sum(split),
    )


def free_pieces(
    found: Lifetimes, block_bytes: Ints, held: Sequence[tuple[int, int]], position: int
) -> list[int]:
    """Bytes of each free piece of the held memory (`segment_lives.held_at`) at a position."""
    rows = np.flatnonzero((found.born <= position) & (position < found.released))
    rows = rows[np.argsort(found.address[rows], kind="stable")]
    starts = found.address[rows]
    stops = starts + block_bytes[rows]
    pieces = []
    for low, high in held:
        first, last = np.searchsorted(starts, (low, high))
        inner = slice(int(first), int(last))
        edges = np.r_[low, stops[inner]], np.r_[starts[inner], high]
        gaps = edges[1] - edges[0]
        pieces += gaps[gaps > 0].tolist()
    return pieces
