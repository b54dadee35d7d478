"""Adds decoded events of a PyTorch trace as rows to the growing columns."""

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from peakward.traces.readers.gathered import Array, Gathered, Rows, size_of
from peakward.traces.readers.json_text import nanoseconds, nanoseconds_of_text
from peakward.traces.readers.torch_events import (
    ABSENT,
    About,
    Arguments,
    Begin,
    Complete,
    CompleteAsText,
    End,
    Event,
    Id,
    ThreadName,
    foreign_category,
    foreign_device,
    id_text,
    kind_of,
    on_its_own,
)
from peakward.traces.table import NONE, TOO_LARGE, GpuKind, HostKind, Ints

_LEGACY_CATEGORIES: dict[Id, str] = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
"""Categories by pid, for events without a category from before Kineto."""
_TIMED = frozenset({Complete, CompleteAsText})
_OTHERS = frozenset({Begin, End, About})


class InexactTimes(Exception):
    """The times must be decoded as text."""


class Timed(NamedTuple):
    """Complete events in the file's order, with their times."""

    events: Sequence[Complete | Begin]
    start_ns: Ints
    duration_ns: Ints

    def where(self, chosen: NDArray[np.bool_]) -> "Timed":
        """The chosen events."""
        if chosen.all():
            return self
        events = list(compress(self.events, chosen.tolist()))
        return Timed(events, self.start_ns[chosen], self.duration_ns[chosen])


def add(gathered: Gathered, events: Sequence[Event]) -> None:
    """Add all events, or none.

    Raises:
        InexactTimes: numbers may have lost digits in decoding; nothing was taken in.
    """
    timed: list[Any] = [each for each in events if type(each) in _TIMED]
    if timed:
        add_timed(gathered, Timed(timed, *_times(timed)))
    if len(timed) < len(events):
        _add_others(gathered, [each for each in events if type(each) in _OTHERS])
    gathered.n_events += len(events)


def _times(events: Sequence[Complete]) -> tuple[Ints, Ints]:
    starts, durations = [each.ts for each in events], [each.dur for each in events]
    if type(events[0]) is CompleteAsText:
        return nanoseconds_of_text(starts), nanoseconds_of_text(durations)  # type: ignore[arg-type]
    start_ns, duration_ns = nanoseconds(starts), nanoseconds(durations)
    if start_ns is None or duration_ns is None:
        raise InexactTimes
    return start_ns, duration_ns


def add_timed(gathered: Gathered, timed: Timed) -> None:
    """Add complete events as rows, in their order. Events with a negative or absurd time are counted and left
    out."""
    codes = _codes(timed.events)
    unknown, known = codes == _UNKNOWN, codes >= 0
    for place in np.flatnonzero(codes == _FOREIGN).tolist():
        gathered.foreign.add(foreign_category(timed.events[place].cat or "") or "")
    good = (timed.start_ns >= 0) & (timed.duration_ns >= 0) & (timed.duration_ns < TOO_LARGE)
    if unknown.any() or not good.all():
        gathered.leave_out(
            unknown_category=int(np.count_nonzero(unknown)),
            bad_times=int(np.count_nonzero(known & ~good)),
        )
    host, gpu = good & known & (codes < _FIRST_GPU), good & (codes >= _FIRST_GPU)
    if host.any():
        part, kind = timed.where(host), codes[host]
        own = host_rows(gathered, kind, part.events)
        gathered.host.append(_common(gathered, part, kind) | own)
    if gpu.any():
        part, kind = timed.where(gpu), codes[gpu] - _FIRST_GPU
        own = gpu_rows(gathered, kind, part.events)
        gathered.gpu.append(_common(gathered, part, kind) | own)


class _Codes(dict[str | None, int]):
    """The kind of each category as one number: a HostKind, or _FIRST_GPU + a GpuKind."""

    def __missing__(self, category: str | None) -> int:
        kind = None if category is None else kind_of(category)
        if category is not None and foreign_category(category) is not None:
            code = _FOREIGN
        elif kind is None:
            code = _NO_CATEGORY if category is None else _SILENT
        elif kind == "unknown":
            code = _UNKNOWN
        else:
            code = int(kind) + (_FIRST_GPU if isinstance(kind, GpuKind) else 0)
        # A hostile file may have a different category in each event.
        if len(self) < 1000:
            self[category] = code
        return code


_FIRST_GPU, _SILENT, _UNKNOWN, _NO_CATEGORY, _FOREIGN = 16, -1, -2, -3, -4
_CODES = _Codes()


def _codes(events: Sequence[Complete | Begin]) -> Ints:
    codes = np.array([_CODES[each.cat] for each in events])
    for place in np.flatnonzero(codes == _NO_CATEGORY).tolist():
        codes[place] = _CODES[_LEGACY_CATEGORIES.get(events[place].pid, "")]
    return codes


def _common(gathered: Gathered, timed: Timed, kind: Ints) -> Rows:
    """The columns that every event has."""
    names = gathered.names
    return {
        "start_ns": timed.start_ns,
        "duration_ns": timed.duration_ns,
        "kind": kind.astype(np.uint8),
        "name": np.array([names[each.name] for each in timed.events], np.int32),
    }


def _add_others(gathered: Gathered, events: Sequence[Event]) -> None:
    for event in events:
        if type(event) is Begin or type(event) is End:
            gathered.halves.append(on_its_own(event))
            gathered.others_n_bytes += 300 + _text_bytes(event)
        elif type(event) is About and event.name in ("thread_name", "process_name"):
            try:
                name = msgspec.json.decode(event.args, type=ThreadName).name
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if event.name == "process_name":
                if maker := foreign_device(name):
                    gathered.foreign.add(maker)
                continue
            gathered.thread_names[id_text(event.pid), id_text(event.tid)] = name
            gathered.others_n_bytes += 300 + size_of(name)


def _text_bytes(half: Begin | End) -> int:
    if isinstance(half, End) or half.args is None:
        return size_of(getattr(half, "name", ""))
    return size_of(half.name) + sum(len(bytes(each)) for each in half.args.texts())


_NO_ARGUMENTS = Arguments()


def host_rows(gathered: Gathered, kind: Ints, events: Sequence[Any]) -> Rows:
    """All columns except the common ones: start, duration, kind and name."""
    shapes = gathered.shapes
    calls, ops = kind == HostKind.CALL, kind == HostKind.OP
    rows: Rows = {
        "thread": _threads(gathered, events),
        "correlation": np.full(len(events), NONE),
        "sequence": np.full(len(events), NONE),
        "backward": np.zeros(len(events), np.bool_),
        "shape": np.full(len(events), NONE, np.int32),
    }
    of_calls, of_ops = _arguments(events, calls), _arguments(events, ops)
    rows["correlation"][calls] = _integers([each.correlation for each in of_calls])
    rows["sequence"][ops] = _integers([each.sequence for each in of_ops])
    rows["backward"][ops] = _integers([each.forward_thread for each in of_ops]) > 0
    rows["shape"][ops] = [
        NONE
        if each.dims is ABSENT and each.types is ABSENT and each.concrete is ABSENT
        else shapes[b"[%b,%b,%b]" % (each.dims, each.types, each.concrete)]
        for each in of_ops
    ]
    return rows


def _arguments(events: Sequence[Any], chosen: Array) -> list[Arguments]:
    return [each.args or _NO_ARGUMENTS for each in compress(events, chosen.tolist())]


def _threads(gathered: Gathered, events: Sequence[Any]) -> Array:
    pids, tids = [each.pid for each in events], [each.tid for each in events]
    if pids.count(pids[0]) == len(pids):
        # Pairs are requested once for each thread and not for each event: that saves 5% of the whole reading.
        known = {tid: gathered.threads[pids[0], tid] for tid in dict.fromkeys(tids)}
        return np.array([known[tid] for tid in tids], np.int32)
    return np.array([gathered.threads[pair] for pair in zip(pids, tids, strict=True)], np.int32)


def gpu_rows(gathered: Gathered, kind: Ints, events: Sequence[Any]) -> Rows:
    """All columns except the common ones, for GPU work."""
    processes = gathered.gpu_processes
    arguments = [each.args or _NO_ARGUMENTS for each in events]
    device = _integers([each.device for each in arguments])
    if NONE in device:  # Kineto gives GPU work the device as its pid and the stream as its tid.
        device = np.where(device == NONE, _integers([each.pid for each in events]), device)
    stream = _integers([each.stream for each in arguments])
    if NONE in stream:
        stream = np.where(stream == NONE, _integers([each.tid for each in events]), stream)
    n_bytes = _integers([each.n_bytes for each in arguments])
    sized = (kind != GpuKind.KERNEL) & (n_bytes >= 0) & (n_bytes < TOO_LARGE)
    return {
        "device": np.where((device >= 0) & (device < 2**31), device, NONE),
        "stream": stream,
        "process": np.array([processes[each.pid] for each in events], np.int32),
        "correlation": _integers([each.correlation for each in arguments]),
        "n_bytes": np.where(sized, n_bytes, NONE),
        "graph": _integers([each.graph for each in arguments]),
        "collective": np.array(
            [
                NONE if each.collective is ABSENT else _collective(gathered, each)
                for each in arguments
            ],
            np.int32,
        ),
    }


def _collective(gathered: Gathered, given: Arguments) -> int:
    if given.group is ABSENT:
        return NONE
    told = b" ".join(bytes(each)[:_DESCRIBED_BYTES] for each in given.described())
    return gathered.names[told.decode("utf-8", "replace")]


_DESCRIBED_BYTES = 4096
"""The most bytes of each part of a collective's description: the ranks of a large group are many."""


def _integers(values: Sequence[Any]) -> Ints:
    """The integers, also from strings; NONE for values that are not 64-bit integers."""
    found = np.array(values) if values else np.empty(0, np.int64)
    return found if found.dtype == np.int64 else np.array([*map(_integer, values)], np.int64)


def _integer(value: object) -> int:
    try:
        whole = int(value) if isinstance(value, int | float | str) else NONE
    except (ValueError, OverflowError):
        return NONE
    return whole if -(2**63) <= whole < 2**63 else NONE
