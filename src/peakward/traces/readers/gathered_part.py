"""Passes the data that another process gathered from the same trace, as bytes."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

import msgspec
import numpy as np

from peakward.traces.readers.gathered import (
    GPU_DTYPES,
    HOST_DTYPES,
    Array,
    Gathered,
    Interned,
    LeftOut,
)
from peakward.traces.readers.torch_events import Id
from peakward.traces.table import NONE

K = TypeVar("K", bound=Hashable)


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
