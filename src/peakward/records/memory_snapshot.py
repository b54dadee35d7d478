"""What an allocator snapshot says: how much memory a program held, for what, and how well it was packed.

Allocated counts blocks, as `torch.cuda.memory_allocated` does; requested what the program asked for;
active also blocks that were let go but are still in use on another stream; reserved all segments.
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
    """The innermost line outside torch and Python's library, else the innermost; None without a stack."""
    category: str
    """The one that most of the bytes have."""
    n: int
    n_bytes: int
    largest_bytes: int
    lines: tuple[str, ...]
    """Of the stack, innermost first; the program's own where it has any."""


class MemoryPeak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first moment at which the most was allocated."""

    at_s: float
    """Since the first event."""
    balance: MemoryBalance
    categories: tuple[MemoryShare, ...]
    places: tuple[MemoryShare, ...]
    """By the part of the program that made them."""
    holders: tuple[MemoryHolder, ...]
    """The greatest."""
    n_holders: int
    ranges: tuple[str, ...]
    """Annotations that were open, the outermost first."""
    uncertain_bytes: int
    """At most so much more was allocated: blocks of which only the least size is known."""


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that was held in a stretch of the recording."""

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
    """Free blocks that share their segment with blocks in use, so that it cannot be given back."""
    split_bytes: int


class MemoryChurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the allocator did during the recording."""

    n_allocs: int
    n_frees: int
    allocated_bytes: int
    """All that was asked for, added up."""
    n_device_allocs: int
    """cudaMalloc, and mapping of parts of expandable segments."""
    n_device_frees: int
    n_retries: int
    """Times when cached segments were given back and the device was asked again at once: by the
    stacks not empty_cache, so presumably cudaMalloc had failed."""
    retry_bytes: int
    """Given back then."""
    n_steps: int | None
    """Steps of optimisers by annotations; None where there are none."""


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An allocation that failed."""

    at_s: float
    needed_bytes: int
    """As rounded."""
    device_free_bytes: int
    """By the driver."""
    balance: MemoryBalance
    cached_free_bytes: int
    """Free inside segments that the allocator still held."""
    largest_free_bytes: int
    """The largest piece of it."""
    source: str | None

    @property
    def was_limited(self) -> bool:
        """Whether the device itself had enough: then a limit on the process was in the way."""
        return self.device_free_bytes >= self.needed_bytes

    @property
    def was_fragmented(self) -> bool:
        """Whether in one piece what was free would have sufficed: in segments, or in segments and on
        the device together where the process could have had that."""
        free_bytes = self.cached_free_bytes
        if not self.was_limited:
            free_bytes += self.device_free_bytes
        return free_bytes >= self.needed_bytes


class MemoryCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the events agree with the segments."""

    n_contradicting_events: int
    n_contradicting_blocks: int
    difference_bytes: int
    """Held at the end by the events less by the segments."""
    n_sizes_checked: int
    """Blocks whose size was worked out from events and that the segments show as well."""
    n_sizes_wrong: int


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device."""

    device: int
    n_events: int
    recorded_s: float
    start: MemoryBalance
    """Before the first event, reckoned back from the end."""
    end: MemoryBalance
    before_bytes: int
    """Held at the end since before the recording: only the segments know of it."""
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
    """What told the categories that occur."""
    incomplete: tuple[str, ...]
    """What the snapshot cannot say, and how much."""
