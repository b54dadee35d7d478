"""The analysis of one device's part of a snapshot."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from peakward.records.memory_snapshot import (
    DeviceMemory,
    MemoryCheck,
    MemoryPeak,
    OutOfMemory,
)
from peakward.traces.memory.balances import Balances, balances
from peakward.traces.memory.block_sizes import SMALL_BYTES, BlockSizes, block_sizes
from peakward.traces.memory.churn import churn
from peakward.traces.memory.holders import holders, shares, source
from peakward.traces.memory.lifetimes import Lifetimes, lifetimes
from peakward.traces.memory.origins import CATEGORIES, PLACES, Origins, origins
from peakward.traces.memory.packing import free_pieces, segment_kinds
from peakward.traces.memory.segment_lives import held_at, reserved_bytes, segment_lives
from peakward.traces.memory.table import Action, Annotation, Events, Ints, Segment, Snapshot
from peakward.traces.memory.timeline import open_ranges, timeline, times_us

MOST_OOMS: Final = 100
"""The most out-of-memory events that are analysed, because each one uses all events before it."""


@dataclass(frozen=True)
class OneDevice:
    """One device of a snapshot. `marks` belong to its stacks. Properties are computed when first used."""

    snapshot: Snapshot
    device: int
    marks: Ints

    @cached_property
    def events(self) -> Events:
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
