"""An allocator snapshot in columns: the contract between its reader and its analyses."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

NONE = -1
"""No stack, no event."""


class Action(IntEnum):
    """An allocator action, named as in torch."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    OTHER = 9
    """Named by the user or by a later torch. It carries no memory."""


class Frame(NamedTuple):
    """A line of a stack."""

    filename: str
    line: int
    name: str


class Block(NamedTuple):
    """A piece of a segment at the end."""

    address: int
    n_bytes: int
    requested_bytes: int
    state: str
    stack: int


class Segment(NamedTuple):
    """Memory that the allocator holds at the end."""

    device: int
    address: int
    n_bytes: int
    stream: int
    kind: str
    """small or large."""
    pool: tuple[int, int]
    """(0, 0) except for private pools, such as those of CUDA graphs."""
    is_expandable: bool
    blocks: tuple[Block, ...]


class Annotation(NamedTuple):
    """The start or end of a range on the host's clock."""

    device: int
    time_us: int
    name: str
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvents:
    """Columns of equal length, oldest event first within a device."""

    device: Ints
    action: Ints
    address: Ints
    """The address; for an OOM the free bytes of the device."""
    n_bytes: Ints
    """The requested bytes; for segments the bytes taken or returned, for an OOM the bytes it needed."""
    time_us: Ints
    """Time since 1970."""
    stack: Ints
    """The position in `Snapshot.stacks`, or NONE where none was recorded."""
    has_forward: Flags
    """Whether the event names the forward lines of its backward pass."""

    def __len__(self) -> int:
        return len(self.device)

    def of(self, rows: Any) -> "MemoryEvents":
        """These rows, by positions or flags."""
        return MemoryEvents(**{name: getattr(self, name)[rows] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The used parts of a file."""

    source: str
    segments: tuple[Segment, ...]
    events: MemoryEvents
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    """Positions in `frames`, innermost first."""
    annotations: tuple[Annotation, ...]
    settings: dict[str, Any]
    directory: str
    """The working directory. Files of the program below it are named relative to it."""
