"""A trace as columns: the GPUs' work, the host's activity, and the names of both.

Every reader makes one of these tables and every analysis reads it. Times are integer nanoseconds on the
trace's own clock. Columns are numpy arrays of equal length, sorted by `start_ns`. Names, threads and shapes
are stored once and referred to by their position.
"""

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Indices = NDArray[np.int32]
Codes = NDArray[np.uint8]
NONE = -1
"""The value for "none" or "unknown" in a column of positions, ids or byte counts."""
TOO_LARGE = 1 << 53
"""Durations (104 days) and byte counts (8 PiB) of a trace stay below this, so that sums over a thousand rows
of any file stay within 64 bits."""


class GpuKind(IntEnum):
    """The kind of a piece of GPU work."""

    KERNEL = 0
    COPY = 1
    SET = 2


class Direction(IntEnum):
    """The direction of a copy. `PEER` is from one device to another."""

    UNKNOWN = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    PEER = 4
    HOST_TO_HOST = 5


class HostKind(IntEnum):
    """The kind of a host row.

    `OP` is an operator of the framework, `CALL` a call into the CUDA or HIP runtime or driver, `RANGE` a
    named range (`record_function`, NVTX), `PYTHON` a Python function, `OVERHEAD` time that the profiler
    itself took.
    """

    OP = 0
    CALL = 1
    RANGE = 2
    PYTHON = 3
    OVERHEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuColumns:
    """One row for each piece of work on a GPU. Ranges that a profiler projects onto the GPU are left out."""

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
    """Links work to its launching call within a process; NONE where unknown."""
    n_bytes: Ints
    """The bytes of a copy or a set, below TOO_LARGE; NONE for a kernel."""
    direction: Codes
    """The Direction of a copy."""
    graph: Ints
    """The graph whose launch brought the work, where the trace names it; else NONE."""
    collective: Indices
    """For a kernel of a collective that the trace describes (kind, size, group, number) the position of that
    description in `Table.names`, which is the same text on all its ranks; else NONE."""

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
    """For a CALL the correlation that its launched work also carries; else NONE."""
    sequence: Ints
    """For an OP autograd's sequence number; NONE where there is none. A backward operator has the number of
    the forward operator whose gradient it computes."""
    backward: NDArray[np.bool_]
    """For an OP whether the trace says that it runs in a backward pass."""
    shape: Indices
    """For an OP the position in `Table.shapes` where shapes were recorded; else NONE."""

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
    """A GPU, with the properties that the trace describes."""

    id: int
    name: str | None
    memory_bytes: int | None
    n_sms: int | None
    compute_capability: tuple[int, int] | None = None
    """The capability as CUDA or HIP give it."""


class JobRank(NamedTuple):
    """The rank of the trace's process in a distributed job."""

    rank: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTable:
    """A whole trace."""

    source: str
    """The file's name."""
    format: str
    """"torch" or "nsys"."""
    gpu: GpuColumns
    host: HostColumns
    names: tuple[str, ...]
    shapes: tuple[str, ...]
    """Recorded arguments of operators as JSON `[dims, types, concrete values]`. Each part is as in the trace,
    or null where the trace lacks it."""
    processes: tuple[str, ...]
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    job: JobRank | None
    epoch_ns: int | None
    """The offset from the trace's times to nanoseconds since 1970, which aligns the files of one job."""
    limits: tuple[str, ...]
    """Sentences on data that the reader left out, with the reason. They quote no secrets of other
    programs."""

    @property
    def process_of_thread(self) -> Indices:
        """For each thread the position of its process."""
        return np.array([thread.process for thread in self.threads], dtype=np.int32)


def rows_of_each(
    column: NDArray[np.integer], rows: NDArray[np.intp] | None = None
) -> dict[int, NDArray[np.intp]]:
    """For each value of the column, in the order of values, its positions in ascending order.

    One sort finds them all: a search for each of 1,000 devices went over 200,000 rows each time.

    Args:
        rows: ascending positions to look at; None for all.
    """
    rows = np.arange(len(column)) if rows is None else rows
    rows = rows[np.argsort(column[rows], kind="stable")]
    values, first = np.unique(column[rows], return_index=True)
    return dict(zip(values.tolist(), np.split(rows, first[1:]), strict=False))


def restricted(table: TraceTable, rows: NDArray[np.bool_]) -> TraceTable:
    """The table with only these GPU rows. The host's rows stay, because launches and ranges refer to them."""
    columns = {field.name: getattr(table.gpu, field.name)[rows] for field in fields(GpuColumns)}
    return replace(table, gpu=GpuColumns(**columns))
