"""The analysis of an allocator snapshot: how much memory a program held, for what, and how well packed.

Allocated counts blocks, as `torch.cuda.memory_allocated` does. Requested is the size that the program asked
for. Active adds freed blocks that another stream still uses. Reserved is the size of all segments.
"""

from typing import ClassVar

import msgspec

from peakward.records.result import Result


class MemoryBalance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device's memory at one moment."""

    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    requested_bytes: int


class MemoryShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allocations of one kind at one moment."""

    name: str
    n: int
    n_bytes: int


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allocations that one stack made and that are held at one moment."""

    source: str | None
    """The innermost line outside torch and Python's library, else the innermost line; None without a
    stack."""
    category: str
    """The category of most of the bytes."""
    n: int
    n_bytes: int
    largest_bytes: int
    lines: tuple[str, ...]
    """The lines of the stack, innermost first; only the program's own where there are any."""


class MemoryPeak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first moment at which the most was allocated."""

    at_s: float
    """Time since the first event."""
    balance: MemoryBalance
    categories: tuple[MemoryShare, ...]
    places: tuple[MemoryShare, ...]
    """Shares by the part of the program that made the allocations."""
    holders: tuple[MemoryHolder, ...]
    """The largest holders."""
    n_holders: int
    ranges: tuple[str, ...]
    """The annotations that were open, outermost first."""
    uncertain_bytes: int
    """The most that the peak may be higher, because only a minimum size is known of some blocks."""


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest memory in a stretch of the recording."""

    at_s: float
    allocated_bytes: int
    reserved_bytes: int


class SegmentKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Segments of one kind at the end."""

    name: str
    n: int
    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_free_bytes: int
    n_split: int
    """Free blocks that share their segment with blocks in use, so the segment cannot be returned."""
    split_bytes: int


class MemoryChurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The activity of the allocator during the recording."""

    n_allocs: int
    n_frees: int
    allocated_bytes: int
    """The sum of all requests."""
    n_device_allocs: int
    """Calls of cudaMalloc, and mappings of parts of expandable segments."""
    n_device_frees: int
    n_retries: int
    """Times when cached segments were returned and the device was asked again at once. The stacks show no
    empty_cache, so cudaMalloc had presumably failed."""
    retry_bytes: int
    """Bytes returned in these retries."""
    n_steps: int | None
    """Optimiser steps, counted by annotations; None where there are none."""


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An allocation that failed."""

    at_s: float
    needed_bytes: int
    """The requested size, rounded."""
    device_free_bytes: int
    """Free bytes on the device, by the driver."""
    balance: MemoryBalance
    cached_free_bytes: int
    """Free bytes inside segments that the allocator still held."""
    largest_free_bytes: int
    """The largest free piece in these segments."""
    source: str | None

    @property
    def was_limited(self) -> bool:
        """Whether the device itself had enough memory, so that a limit on the process was in the way."""
        return self.device_free_bytes >= self.needed_bytes

    @property
    def was_fragmented(self) -> bool:
        """Whether the free memory would have sufficed in one piece: in segments, or in segments and on the
        device together where the process could have had that."""
        free_bytes = self.cached_free_bytes
        if not self.was_limited:
            free_bytes += self.device_free_bytes
        return free_bytes >= self.needed_bytes


class MemoryCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well the events agree with the segments."""

    n_contradicting_events: int
    n_contradicting_blocks: int
    difference_bytes: int
    """Bytes held at the end by the events, minus those by the segments."""
    n_sizes_checked: int
    """Blocks whose size was derived from events and that the segments also show."""
    n_sizes_wrong: int


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device."""

    device: int
    n_events: int
    recorded_s: float
    start: MemoryBalance
    """The balance before the first event, computed backwards from the end."""
    end: MemoryBalance
    before_bytes: int
    """Bytes held at the end since before the recording. Only the segments know them."""
    peak: MemoryPeak | None
    """None without events."""
    most_reserved_bytes: int
    timeline: tuple[MemoryPoint, ...]
    segments: tuple[SegmentKind, ...]
    churn: MemoryChurn
    ooms: tuple[OutOfMemory, ...]
    check: MemoryCheck


class MemoryReport(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole snapshot."""

    ROWS: ClassVar[tuple[str, ...]] = ("devices",)

    source: str
    devices: tuple[DeviceMemory, ...]
    settings: str
    """PYTORCH_CUDA_ALLOC_CONF, as the program had it."""
    evidence: tuple[str, ...]
    """The evidence for the categories that occur."""
    incomplete: tuple[str, ...]
    """Gaps of the snapshot and their size."""
