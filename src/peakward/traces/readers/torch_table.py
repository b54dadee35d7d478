"""Turns the gathered data and the metadata of a PyTorch trace into the table.

Kineto gives GPU work the device as its pid, so the process of GPU work is that of its launching call.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec
import numpy as np

from peakward.traces.readers.gathered import Gathered, Interned, LeftOut, Rows
from peakward.traces.readers.torch_events import direction_of, id_text
from peakward.traces.table import (
    NONE,
    Device,
    Direction,
    GpuColumns,
    GpuKind,
    HostColumns,
    HostKind,
    Indices,
    Ints,
    JobRank,
    Thread,
    TraceTable,
)

_SINCE_1970_NS = 10**18
"""September 2001. Without a base time, later times count from 1970, as Kineto wrote until 2024."""
Raw = msgspec.Raw
ABSENT = Raw(b"null")


class Metadata(
    msgspec.Struct,
    frozen=True,
    rename={
        "events": "traceEvents",
        "device_properties": "deviceProperties",
        "distributed": "distributedInfo",
        "base_time": "baseTimeNanoseconds",
    },
):
    """The used keys of the outermost object. Other keys stay unread, because some programs store their
    environment's variables there."""

    events: Raw | msgspec.UnsetType = msgspec.UNSET
    device_properties: Raw = ABSENT
    distributed: Raw = ABSENT
    base_time: Raw = ABSENT

    def or_else(self, other: "Metadata") -> "Metadata":
        """This metadata, with missing fields from another part of the same file."""
        missing = {
            name: getattr(other, name)
            for name in ("device_properties", "distributed", "base_time")
            if bytes(getattr(self, name)) == b"null"
        }
        return msgspec.structs.replace(self, **missing)

    def events_text(self) -> bytes | None:
        """The JSON of `traceEvents`; None without that key."""
        return None if self.events is msgspec.UNSET else bytes(self.events)

    def devices(self) -> tuple[Device, ...]:
        """The described devices; none where the description is not Kineto's."""
        if len(bytes(self.device_properties)) > _MAX_DEVICES_BYTES:
            return ()
        found = _decoded(self.device_properties, list[_Device]) or []
        return tuple(
            Device(each.id, each.name, each.memory_bytes, each.n_sms, each.compute_capability)
            for each in found
        )

    def job(self) -> JobRank | None:
        """The job's rank and size."""
        found = _decoded(self.distributed, _Distributed)
        return None if found is None else JobRank(found.rank, found.world_size)

    def base_time_ns(self) -> int | None:
        """The offset from the trace's times to nanoseconds since 1970."""
        return _decoded(self.base_time, int)


def table(gathered: Gathered, metadata: Metadata, source: str) -> TraceTable:
    """The table, sorted by start and, where starts are equal, in the file's order."""
    host, gpu = _sorted(gathered.host.take()), _sorted(gathered.gpu.take())
    processes: Interned[str] = Interned()
    threads = _threads(gathered, host, processes)
    _set_gpu_processes(gathered, host, gpu, threads, processes)
    names = tuple(gathered.names)
    gpu["direction"] = _directions(gpu, names)
    return TraceTable(
        source=source,
        format="torch",
        shapes=_shapes(gathered, host),
        gpu=GpuColumns(**gpu),
        host=HostColumns(**host),
        names=names,
        processes=tuple(processes),
        threads=threads,
        devices=metadata.devices(),
        job=metadata.job(),
        epoch_ns=_epoch_ns(metadata, host, gpu),
        limits=(*left_out(gathered.left_out), *said_twice(gathered, metadata)),
    )


def _sorted(rows: Rows) -> Rows:
    starts = rows["start_ns"]
    if np.all(starts[:-1] <= starts[1:]):
        return rows
    # With 32 bits a trace of 1 GB peaks 10 MB lower.
    order = np.argsort(starts, kind="stable").astype(np.int32 if len(starts) < 2**31 else np.int64)
    for name in rows:
        rows[name] = rows[name][order]
    return rows


def _threads(gathered: Gathered, host: Rows, processes: Interned[str]) -> tuple[Thread, ...]:
    """The threads of the column, which is changed to refer to them. 7 and "7" are one thread."""
    threads: Interned[tuple[str, str]] = Interned()
    positions = [threads[id_text(pid), id_text(tid)] for pid, tid in gathered.threads]
    host["thread"] = np.array(positions, np.int32)[host["thread"]]
    return tuple(
        Thread(processes[pid], tid, gathered.thread_names.get((pid, tid))) for pid, tid in threads
    )


def _set_gpu_processes(
    gathered: Gathered,
    host: Rows,
    gpu: Rows,
    threads: tuple[Thread, ...],
    processes: Interned[str],
) -> None:
    """Set each work's launching process, or one named after the work's own pid where none is known."""
    of_thread = np.array([each.process for each in threads], np.int32)
    found = launching_processes(host, gpu, of_thread)
    own_pids = list(gathered.gpu_processes)
    unknown = found == NONE
    for position in np.unique(gpu["process"][unknown]).tolist():
        found[unknown & (gpu["process"] == position)] = processes[id_text(own_pids[position])]
    gpu["process"] = found


def _directions(gpu: Rows, names: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    directions = np.full(len(gpu["kind"]), Direction.UNKNOWN, np.uint8)
    is_copy = gpu["kind"] == GpuKind.COPY
    used, inverse = np.unique(gpu["name"][is_copy], return_inverse=True)
    found = [direction_of(names[position]) for position in used.tolist()]
    directions[is_copy] = np.array(found, np.uint8)[inverse]
    return directions


def _shapes(gathered: Gathered, host: Rows) -> tuple[str, ...]:
    """The shapes, written compactly so that equal ones are one. The column is changed to refer to them."""
    shapes: Interned[str] = Interned()
    positions = [
        NONE if text == b"[null,null,null]" else shapes[_compact(text)] for text in gathered.shapes
    ]
    # NONE is the last position.
    host["shape"] = np.array([*positions, NONE], np.int32)[host["shape"]]
    return tuple(shapes)


def _compact(text: bytes) -> str:
    return msgspec.json.format(text, indent=-1).decode("utf-8", "replace")


def _epoch_ns(metadata: Metadata, host: Rows, gpu: Rows) -> int | None:
    starts = [int(rows["start_ns"][0]) for rows in (host, gpu) if len(rows["start_ns"])]
    if starts and min(starts) >= _SINCE_1970_NS:
        return 0
    return metadata.base_time_ns()


def left_out(numbers: LeftOut) -> Iterator[str]:
    """The number of left-out events by reason, the most frequent first."""
    whys = {
        "entries left out: not an event with a known phase, a name and a numeric time": (
            numbers.malformed
        ),
        "events left out: a time or duration is negative, absurd or no number": numbers.bad_times,
        "beginnings or ends left out: the other half is missing": numbers.unmatched,
        "events left out: of categories unknown to this reader": numbers.unknown_category,
    }
    for why, n in sorted(whys.items(), key=lambda each: -each[1]):
        if n:
            yield f"{n:,} {why}"


def said_twice(gathered: Gathered, metadata: Metadata) -> Iterator[str]:
    """A sentence where a second array of events follows the one that was read."""
    if metadata.events_text() is not None:
        yield (
            f"The key traceEvents is there more than once: only the first, with {gathered.n_events:,} "
            "events, was read"
        )


def launching_processes(host: Rows, gpu: Rows, process_of_thread: Indices) -> Indices:
    """For each row of `gpu` a position among the processes; NONE where no call tells.

    A file of one process needs no calls for this. In a file merged from several, ids of launches repeat: the
    latest call with the work's id that started no later counts.
    """
    calls = host["kind"] == HostKind.CALL
    threads = np.unique(host["thread"][calls] if calls.any() else host["thread"])
    launchers = np.unique(process_of_thread[threads])
    n_gpu = len(gpu["start_ns"])
    if len(launchers) <= 1:
        return np.full(n_gpu, launchers[0] if len(launchers) else NONE, np.int32)
    found = _latest_call(
        host["correlation"][calls], host["start_ns"][calls], gpu["correlation"], gpu["start_ns"]
    )
    of_call = process_of_thread[host["thread"][calls]]
    # NONE is the last position, so that it stands for itself.
    return np.append(of_call, NONE)[found].astype(np.int32)


def _latest_call(
    call_ids: Ints,
    call_starts: Ints,
    work_ids: Ints,
    work_starts: Ints,
) -> Ints:
    """The position of each work's call; NONE where there is none."""
    n_calls = len(call_ids)
    ids = np.concatenate([call_ids, work_ids])
    starts = np.concatenate([call_starts, work_starts])
    is_work = np.arange(len(ids)) >= n_calls
    order = np.lexsort((is_work, starts, ids))
    place = np.arange(len(ids))
    last_call = np.maximum.accumulate(np.where(is_work[order], NONE, place))
    same = (last_call != NONE) & (ids[order][last_call] == ids[order]) & (ids[order] != NONE)
    found = np.full(len(ids), NONE)
    found[order] = np.where(same, order[last_call], NONE)
    return found[n_calls:]


T = TypeVar("T")
_MAX_DEVICES_BYTES = 1 << 20
"""Kineto writes 0.5 KB for each device."""


class _Device(
    msgspec.Struct,
    rename={
        "memory_bytes": "totalGlobalMem",
        "n_sms": "numSms",
        "major": "computeMajor",
        "minor": "computeMinor",
    },
):
    id: int
    name: str | None = None
    memory_bytes: int | None = None
    n_sms: int | None = None
    major: int | None = None
    minor: int | None = None

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        if self.major is None or self.minor is None:
            return None
        return (self.major, self.minor)


class _Distributed(msgspec.Struct):
    rank: int
    world_size: int


def _decoded(text: Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(text, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
