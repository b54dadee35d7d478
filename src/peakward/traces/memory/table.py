"""An allocator snapshot in columns: the contract between its reader and what is worked out from it."""

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
    """What the allocator did, as torch names it."""

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
    """Named by the user or by a later torch; carries no memory."""


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
    """(0, 0) but for private pools, such as those of CUDA graphs."""
    is_expandable: bool
    blocks: tuple[Block, ...]


class Annotation(NamedTuple):
    """Where a range began or ended on the host's clock."""

    device: int
    time_us: int
    name: str
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Equally long columns, oldest first within a device."""

    device: Ints
    action: Ints
    address: Ints
    """Of an OOM the bytes that the device had free."""
    n_bytes: Ints
    """What was asked for; of segments what was taken or given back, of an OOM what it needed."""
    time_us: Ints
    """Since 1970."""
    stack: Ints
    """Position in `Snapshot.stacks`, or NONE where none was recorded."""
    has_forward: Flags
    """Whether the event names the forward pass's lines that its backward is of."""

    def __len__(self) -> int:
        return len(self.device)

    def of(self, rows: Any) -> "Events":
        """Those rows, by positions or flags."""
        return Events(**{name: getattr(self, name)[rows] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All of a file that is used."""

    source: str
    segments: tuple[Segment, ...]
    events: Events
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    """Positions in `frames`, innermost first."""
    annotations: tuple[Annotation, ...]
    settings: dict[str, Any]
    directory: str
    """The working directory: the program's files below it are named from there on."""
