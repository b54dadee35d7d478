"""The analysis of one device's part of a snapshot: balances, timeline, and how well segments are filled."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from peakward.records.memory_snapshot import (
    DeviceMemory,
    MemoryBalance,
    MemoryCheck,
    MemoryChurn,
    MemoryPeak,
    MemoryPoint,
    OutOfMemory,
    SegmentKind,
)
from peakward.traces.memory.block_sizes import (
    SMALL_BYTES,
    BlockSizes,
    block_sizes,
    held_at,
    reserved_bytes,
    segment_lives,
)
from peakward.traces.memory.lifetimes import Lifetimes, lifetimes
from peakward.traces.memory.origins import (
    CATEGORIES,
    PLACES,
    Mark,
    Origins,
    holders,
    origins,
    shares,
    source,
)
from peakward.traces.memory.segments import ALLOCATED, INACTIVE
from peakward.traces.memory.table import (
    NONE,
    Action,
    Annotation,
    Flags,
    Ints,
    MemoryEvents,
    Segment,
    Snapshot,
)

MOST_OOMS: Final = 100
"""The most out-of-memory events that are analysed, because each one uses all events before it."""


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


@dataclass(frozen=True)
class OneDevice:
    """One device of a snapshot. `marks` belong to its stacks. Properties are computed when first used."""

    snapshot: Snapshot
    device: int
    marks: Ints

    @cached_property
    def events(self) -> MemoryEvents:
        """The events of this device."""
        return self.snapshot.events.of(self.snapshot.events.device == self.device)

    @cached_property
    def annotations(self) -> tuple[Annotation, ...]:
        """The annotations of this device, in the order of their times."""
        return tuple(each for each in self.snapshot.annotations if each.device == self.device)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of this device at the end."""
        return tuple(each for each in self.snapshot.segments if each.device == self.device)

    @cached_property
    def lifetimes(self) -> Lifetimes:
        """The lifetimes of its allocations."""
        blocks = [block for each in self.segments for block in each.blocks]
        return lifetimes(self.events, blocks)

    @cached_property
    def sizes(self) -> BlockSizes:
        """The block sizes of its allocations."""
        lives = segment_lives(self.events, self.segments)
        return block_sizes(self.lifetimes, lives, self.snapshot.settings)

    @cached_property
    def balances(self) -> Balances:
        """The balance at every position."""
        reserved = reserved_bytes(self.events, self.segments)
        return balances(self.lifetimes, self.sizes.n_bytes, reserved)

    @cached_property
    def origins(self) -> Origins:
        """The categories and places of its allocations."""
        return origins(self.lifetimes, self.events, self.marks)

    @cached_property
    def oom_events(self) -> Ints:
        """Positions in `events` of out-of-memory events."""
        return np.flatnonzero(self.events.action == Action.OOM)

    @cached_property
    def time_us(self) -> Ints:
        """The time of each position."""
        return times_us(self.events)

    def record(self) -> DeviceMemory:
        """The complete record."""
        found, end = self.lifetimes, self.lifetimes.n_positions - 1
        since_before = found.before & (found.freed == found.n_positions)
        return DeviceMemory(
            device=self.device,
            n_events=len(self.events),
            recorded_s=int(self.time_us[-1]) * 1e-6,
            start=self.balances.at(0),
            end=self.balances.at(end),
            before_bytes=int(self.sizes.n_bytes[since_before].sum()),
            peak=self._peak() if len(self.events) else None,
            most_reserved_bytes=int(self.balances.reserved.max()),
            timeline=timeline(self.balances, self.time_us) if len(self.events) else (),
            segments=segment_kinds(self.segments),
            churn=churn(self.events, self.marks, self.snapshot.annotations),
            ooms=tuple(map(self._oom, self.oom_events[-MOST_OOMS:].tolist())),
            check=MemoryCheck(
                n_contradicting_events=found.contradictions.n_events,
                n_contradicting_blocks=found.contradictions.n_blocks,
                difference_bytes=found.contradictions.n_bytes,
                n_sizes_checked=self.sizes.n_checked,
                n_sizes_wrong=self.sizes.n_wrong,
            ),
        )

    def _peak(self) -> MemoryPeak:
        position = int(self.balances.allocated.argmax())
        alive, n_bytes = self.lifetimes.alive(position), self.sizes.n_bytes
        category, place, _ = self.origins
        greatest, n_holders = holders(self.snapshot, self.lifetimes, n_bytes, category, alive)
        time_us = int(self.events.time_us[0]) + int(self.time_us[position])
        return MemoryPeak(
            at_s=int(self.time_us[position]) * 1e-6,
            balance=self.balances.at(position),
            categories=shares(category, CATEGORIES, n_bytes, alive),
            places=shares(place, PLACES, n_bytes, alive),
            holders=greatest,
            n_holders=n_holders,
            ranges=open_ranges(self.annotations, time_us),
            uncertain_bytes=int((alive & self.sizes.is_least).sum()) * SMALL_BYTES,
        )

    def _oom(self, event: int) -> OutOfMemory:
        position = event + 1
        held = held_at(self.events, self.segments, position)
        pieces = free_pieces(self.lifetimes, self.sizes.n_bytes, held, position)
        return OutOfMemory(
            at_s=int(self.time_us[position]) * 1e-6,
            needed_bytes=int(self.events.n_bytes[event]),
            device_free_bytes=int(self.events.address[event]),
            balance=self.balances.at(position),
            cached_free_bytes=sum(pieces),
            largest_free_bytes=max(pieces, default=0),
            source=source(self.snapshot, int(self.events.stack[event])),
        )


_TAKES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def churn(events: MemoryEvents, marks: Ints, annotations: Sequence[Annotation]) -> MemoryChurn:
    """The activity on one device. `marks` belong to the stacks (`origins.stack_marks`)."""
    allocs = events.action == Action.ALLOC
    frees = events.action == Action.FREE_REQUESTED
    if not frees.any():
        frees = events.action == Action.FREE_COMPLETED
    retries = _retries(events, marks)
    steps = sum(
        each.name.startswith("Optimizer.step#") and each.stage.upper() != "END"
        for each in annotations
    )
    return MemoryChurn(
        n_allocs=int(allocs.sum()),
        n_frees=int(frees.sum()),
        allocated_bytes=int(events.n_bytes[allocs].sum()),
        n_device_allocs=int(np.isin(events.action, _TAKES).sum()),
        n_device_frees=int(np.isin(events.action, _GIVES).sum()),
        n_retries=len(retries),
        retry_bytes=sum(int(events.n_bytes[low:high].sum()) for low, high in retries),
        n_steps=steps or None,
    )


def _retries(events: MemoryEvents, marks: Ints) -> list[tuple[int, int]]:
    """Runs of freed segments that are directly followed by a device allocation or an out-of-memory event."""
    given = np.isin(events.action, _GIVES) & ~_by_request(events, marks)
    edges = np.flatnonzero(np.diff(np.r_[0, given, 0]))
    asked = np.r_[np.isin(events.action, (*_TAKES, Action.OOM)), False]
    return [(int(low), int(high)) for low, high in edges.reshape(-1, 2) if asked[high]]


def _by_request(events: MemoryEvents, marks: Ints) -> Flags:
    """Whether the stack shows a request by the program; without a stack, true as a precaution."""
    of_event = np.where(events.stack == NONE, 0, np.r_[marks, 0][events.stack])
    found: Flags = (events.stack == NONE) | ((of_event & int(Mark.EMPTY_CACHE)) != 0)
    return found


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
    """Bytes of each free piece of the held memory (`block_sizes.held_at`) at a position."""
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


N_STRETCHES: Final = 300


def times_us(events: MemoryEvents) -> Ints:
    """The time of each position since the first event. It never decreases."""
    if not len(events):
        return np.zeros(1, np.int64)
    since = np.maximum.accumulate(events.time_us) - events.time_us[0]
    found: Ints = np.r_[0, since]
    return found


def timeline(found: Balances, time_us: Ints) -> tuple[MemoryPoint, ...]:
    """The maximum of each equally long stretch in which something happened, placed at the stretch's end. The
    first point lies before the first event."""
    width = max(int(time_us[-1]), 1) / N_STRETCHES
    stretch = np.minimum((time_us / width).astype(np.int64), N_STRETCHES - 1)
    first = np.flatnonzero(np.r_[True, stretch[1:] != stretch[:-1]])
    allocated = np.maximum.reduceat(found.allocated, first)
    reserved = np.maximum.reduceat(found.reserved, first)
    last = np.r_[first[1:] - 1, len(time_us) - 1]
    start = MemoryPoint(
        at_s=0.0, allocated_bytes=int(found.allocated[0]), reserved_bytes=int(found.reserved[0])
    )
    points = (
        MemoryPoint(at_s=int(time_us[end]) * 1e-6, allocated_bytes=int(a), reserved_bytes=int(r))
        for end, a, r in zip(last, allocated, reserved, strict=True)
    )
    return (start, *points)


def open_ranges(annotations: Sequence[Annotation], time_us: int) -> tuple[str, ...]:
    """Names of the ranges that have begun and not ended, outermost first. The annotations are of one device,
    in the order of their times."""
    opened: dict[int, str] = {}
    begun: dict[str, list[int]] = {}
    for number, each in enumerate(annotations):
        if each.time_us > time_us:
            break
        if each.stage.upper() == "START":
            opened[number] = each.name
            begun.setdefault(each.name, []).append(number)
        elif begun.get(each.name):
            del opened[begun[each.name].pop()]
    return tuple(opened.values())


def balances(found: Lifetimes, block_bytes: Ints, reserved: Ints) -> Balances:
    """The balances. `block_bytes` has an entry for each allocation; `reserved` is by position
    (`block_sizes.reserved_bytes`)."""
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
