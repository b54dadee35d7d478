"""A trace as columns: what ran on the GPUs, what the host did, and the names of both.

Every reader makes one of these and every analysis reads it. Times are integer nanoseconds on the
trace's own clock. Columns are numpy arrays of equal length, sorted by `start_ns`; names, threads and
shapes are held once and referred to by their position.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Indices = NDArray[np.int32]
Codes = NDArray[np.uint8]

NONE = -1
"""In a column of positions, ids or byte counts: there is none, or the trace does not say."""
TOO_LARGE = 1 << 53
"""No duration (104 days) and no number of bytes (8 PiB) of a trace reaches it, so that sums over a
thousand rows of any file stay within 64 bits."""


class GpuKind(IntEnum):
    """What the GPU did."""

    KERNEL = 0
    COPY = 1
    SET = 2


class Direction(IntEnum):
    """Of a copy. `PEER` is from one device to another."""

    UNKNOWN = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    PEER = 4
    HOST_TO_HOST = 5


class HostKind(IntEnum):
    """What the host did.

    `OP` is an operator of the framework, `CALL` a call into the CUDA or HIP runtime or driver,
    `RANGE` a range that somebody named (`record_function`, NVTX), `PYTHON` a Python function,
    `OVERHEAD` time that the profiler itself took.
    """

    OP = 0
    CALL = 1
    RANGE = 2
    PYTHON = 3
    OVERHEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuColumns:
    """One row for each piece of work on a GPU; ranges that a profiler projects there are none."""

    start_ns: Ints
    duration_ns: Ints
    """At least 0, below TOO_LARGE."""
    kind: Codes
    """GpuKind."""
    name: Indices
    """Position in `Table.names`."""
    device: Indices
    stream: Ints
    process: Indices
    """Position in `Table.processes`."""
    correlation: Ints
    """Ties work to the call that launched it, within a process; NONE where unknown."""
    n_bytes: Ints
    """Of a copy or a set, below TOO_LARGE; NONE for a kernel."""
    direction: Codes
    """Direction, of a copy."""
    graph: Ints
    """The graph whose launch brought it, where the trace names it; else NONE."""

    @property
    def end_ns(self) -> Ints:
        """Start plus duration."""
        return self.start_ns + self.duration_ns

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostColumns:
    """One row for each operator, call, range or Python function."""

    start_ns: Ints
    duration_ns: Ints
    """At least 0, below TOO_LARGE."""
    kind: Codes
    """HostKind."""
    name: Indices
    """Position in `Table.names`."""
    thread: Indices
    """Position in `Table.threads`."""
    correlation: Ints
    """Of a CALL, what the work that it launched carries too; else NONE."""
    sequence: Ints
    """Of an OP, autograd's sequence number: a backward operator has that of the forward one whose
    gradient it computes. NONE where there is none."""
    backward: NDArray[np.bool_]
    """Of an OP, whether the trace says that it runs in a backward pass."""
    shape: Indices
    """Of an OP, position in `Table.shapes` where shapes were recorded; else NONE."""

    @property
    def end_ns(self) -> Ints:
        """Start plus duration."""
        return self.start_ns + self.duration_ns

    def __len__(self) -> int:
        return len(self.start_ns)


class Thread(NamedTuple):
    """A thread of the host."""

    process: int
    """Position in `Table.processes`."""
    tid: str
    name: str | None


class Device(NamedTuple):
    """A GPU, as far as the trace describes it."""

    id: int
    name: str | None
    memory_bytes: int | None
    n_sms: int | None
    compute_capability: tuple[int, int] | None = None
    """As CUDA or HIP give it."""


class Job(NamedTuple):
    """Which of the processes of a distributed job the trace is of."""

    rank: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A whole trace."""

    source: str
    """The file's name."""
    format: str
    """"torch" or "nsys"."""
    gpu: GpuColumns
    host: HostColumns
    names: tuple[str, ...]
    shapes: tuple[str, ...]
    """What was recorded of operators' arguments: JSON `[dims, types, concrete values]`, the parts as
    the trace has them, null for one that it lacks."""
    processes: tuple[str, ...]
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    job: Job | None
    epoch_ns: int | None
    """What to add to a time for nanoseconds since 1970, so that files of one job can be aligned."""
    limits: tuple[str, ...]
    """What the reader could not take over, in sentences: events left out and why, nothing of
    other programs' secrets."""

    @property
    def process_of_thread(self) -> Indices:
        """By thread, the position of its process."""
        return np.array([thread.process for thread in self.threads], dtype=np.int32)
