"""The growing columns of a trace that is being read, and as bytes for another process."""

import sys
from collections.abc import Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from peakward.traces.readers.torch_events import Begin, End, Id
from peakward.traces.table import NONE

Array = NDArray[Any]
Rows = dict[str, Array]
"""Arrays of equal length by column."""
HOST_DTYPES: dict[str, type[np.generic]] = {
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "kind": np.uint8,
    "name": np.int32,
    "thread": np.int32,
    "correlation": np.int64,
    "sequence": np.int64,
    "backward": np.bool_,
    "shape": np.int32,
}
GPU_DTYPES: dict[str, type[np.generic]] = {
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "kind": np.uint8,
    "name": np.int32,
    "device": np.int32,
    "stream": np.int64,
    "process": np.int32,
    "correlation": np.int64,
    "n_bytes": np.int64,
    "graph": np.int64,
    "collective": np.int32,
}
"""The columns of `GpuColumns` without `direction`, which the names tell at the end. `process` is a position
among `Gathered.gpu_processes` for now."""
K = TypeVar("K", bound=Hashable)


class Interned(dict[K, int], Generic[K]):
    """The position of each key, in the order in which keys are first requested."""

    n_bytes = 0

    def __missing__(self, key: K) -> int:
        position = self[key] = len(self)
        # 100 bytes: a slot of the dict, its share of free ones, the integer.
        self.n_bytes += 100 + size_of(key)
        return position


def size_of(value: object) -> int:
    """Bytes of a string, of a number, or of a tuple of them."""
    held = sum(map(sys.getsizeof, value)) if isinstance(value, tuple) else 0
    return sys.getsizeof(value) + held


class Columns:
    """Rows in their order, by column.

    A column grows in one block of memory, which the system moves without copying. Separate arrays for each
    piece, joined at the end, took 385 MB for 1 GB of trace instead of 250 MB.
    """

    def __init__(self, dtypes: dict[str, type[np.generic]]) -> None:
        self._dtypes = dtypes
        self._blocks = {name: bytearray() for name in dtypes}

    @property
    def n_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(map(len, self._blocks.values()))

    def append(self, rows: Rows) -> None:
        """Append rows that have every column."""
        for name, dtype in self._dtypes.items():
            self._blocks[name] += rows[name].astype(dtype, copy=False).data

    def take(self) -> Rows:
        """Take all rows as arrays, which empties the columns."""
        return {
            name: np.frombuffer(self._blocks.pop(name), dtype)
            for name, dtype in self._dtypes.items()
        }


class LeftOut(NamedTuple):
    """The number of events that the table lacks, by reason."""

    bad_times: int = 0
    malformed: int = 0
    unmatched: int = 0
    unknown_category: int = 0


class Gathered:
    """All data from the events read so far."""

    def __init__(self) -> None:
        self.n_events = 0
        self.times_as_text = False
        """Whether to decode times as text at once, because float64 does not hold this trace's times."""
        self.host = Columns(HOST_DTYPES)
        self.gpu = Columns(GPU_DTYPES)
        self.names: Interned[str] = Interned()
        self.shapes: Interned[bytes] = Interned()
        self.threads: Interned[tuple[Id, Id]] = Interned()
        self.gpu_processes: Interned[Id] = Interned()
        self.thread_names: dict[tuple[str, str], str] = {}
        self.halves: list[Begin | End] = []
        self.others_n_bytes = 0
        """Bytes of the thread names and halves."""
        self.left_out = LeftOut()
        self.foreign: set[str] = set()
        """Accelerators of other vendors than NVIDIA and AMD that have events."""

    def leave_out(self, **numbers: int) -> None:
        """Count left-out events by reason, a field of `LeftOut`."""
        more = {why: getattr(self.left_out, why) + number for why, number in numbers.items()}
        self.left_out = self.left_out._replace(**more)

    @property
    def n_bytes(self) -> int:
        """The approximate bytes that it holds in memory."""
        interned = (self.names, self.shapes, self.threads, self.gpu_processes)
        return (
            self.host.n_bytes
            + self.gpu.n_bytes
            + sum(each.n_bytes for each in interned)
            + self.others_n_bytes
        )


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A `Gathered` without halves of events, as plain values, and the text after its events."""

    n_events: int
    host: dict[str, bytes]
    gpu: dict[str, bytes]
    names: list[str]
    shapes: list[bytes]
    threads: list[tuple[Id, Id]]
    gpu_processes: list[Id]
    thread_names: list[tuple[str, str, str]]
    left_out: LeftOut
    foreign: list[str]
    after: bytes


_DECODER = msgspec.msgpack.Decoder(Part)


def to_bytes(gathered: Gathered, after: bytes) -> bytes:
    """The gathered data as bytes; empties `gathered`.

    Raises:
        OverflowError: a pid or tid has more than 64 bits.
    """
    part = Part(
        n_events=gathered.n_events,
        host={name: column.tobytes() for name, column in gathered.host.take().items()},
        gpu={name: column.tobytes() for name, column in gathered.gpu.take().items()},
        names=list(gathered.names),
        shapes=list(gathered.shapes),
        threads=list(gathered.threads),
        gpu_processes=list(gathered.gpu_processes),
        thread_names=[(*ids, name) for ids, name in gathered.thread_names.items()],
        left_out=gathered.left_out,
        foreign=list(gathered.foreign),
        after=after,
    )
    return msgspec.msgpack.encode(part)


def take_in(gathered: Gathered, sent: bytes) -> bytes:
    """Add the data that `to_bytes` made of a later stretch of the trace; returns the text after its
    events."""
    part = _DECODER.decode(sent)
    names = _positions(gathered.names, part.names)
    host = {name: np.frombuffer(part.host[name], HOST_DTYPES[name]) for name in HOST_DTYPES}
    host["name"] = names[host["name"]]
    host["thread"] = _positions(gathered.threads, part.threads)[host["thread"]]
    host["shape"] = _positions(gathered.shapes, part.shapes)[host["shape"]]
    gathered.host.append(host)
    gpu = {name: np.frombuffer(part.gpu[name], GPU_DTYPES[name]) for name in GPU_DTYPES}
    gpu["name"] = names[gpu["name"]]
    gpu["collective"] = names[gpu["collective"]]
    gpu["process"] = _positions(gathered.gpu_processes, part.gpu_processes)[gpu["process"]]
    gathered.gpu.append(gpu)
    for pid, tid, name in part.thread_names:
        gathered.thread_names[pid, tid] = name
    gathered.leave_out(**part.left_out._asdict())
    gathered.foreign.update(part.foreign)
    gathered.n_events += part.n_events
    return part.after


def _positions(mine: Interned[K], theirs: Iterable[K]) -> Array:
    """The position of each of theirs among mine. NONE, their last position, stays NONE."""
    return np.array([*(mine[each] for each in theirs), NONE], np.int32)
