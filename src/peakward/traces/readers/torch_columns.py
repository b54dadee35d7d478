"""Decoded events of a PyTorch trace to rows of the columns that grow."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from peakward.traces.readers.gathered import Gathered, Rows, size_of
from peakward.traces.readers.json_times import nanoseconds, nanoseconds_of_text
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
    id_text,
    on_its_own,
)
from peakward.traces.readers.torch_kinds import kind_of
from peakward.traces.table import NONE, GpuKind, HostKind, Ints

_NO_ARGUMENTS = Arguments()
_LEGACY_CATEGORIES: dict[Id, str] = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
"""By pid, of events without a category: what torch's profiler wrote before Kineto."""


class InexactTimes(Exception):
    """The times must be decoded as text."""


def add(gathered: Gathered, events: Sequence[Event]) -> None:
    """Take them in, all or none.

    Raises:
        InexactTimes: numbers may have lost digits in decoding; nothing was taken in.
    """
    found: dict[str | None, list[Complete]] = {}
    for event in events:
        if type(event) is Complete or type(event) is CompleteAsText:
            try:
                found[event.cat].append(event)
            except KeyError:
                found[event.cat] = [event]
    timed = [(category, group, *_times(group)) for category, group in _named(found)]
    for each in timed:
        add_timed(gathered, *each)
    _add_others(gathered, events)
    gathered.n_events += len(events)


def _named(
    by_category: dict[str | None, list[Complete]],
) -> Iterator[tuple[str, list[Complete]]]:
    legacy: dict[str, list[Complete]] = defaultdict(list)
    for category, events in by_category.items():
        if category is not None:
            yield category, events
            continue
        for event in events:
            legacy[_LEGACY_CATEGORIES.get(event.pid, "")].append(event)
    yield from legacy.items()


def _times(events: Sequence[Complete]) -> tuple[Ints, Ints]:
    starts, durations = [each.ts for each in events], [each.dur for each in events]
    if type(events[0]) is CompleteAsText:
        return nanoseconds_of_text(starts), nanoseconds_of_text(durations)  # type: ignore[arg-type]
    start_ns, duration_ns = nanoseconds(starts), nanoseconds(durations)
    if start_ns is None or duration_ns is None:
        raise InexactTimes
    return start_ns, duration_ns


def add_timed(
    gathered: Gathered,
    category: str,
    events: Sequence[Complete | Begin],
    start_ns: Ints,
    duration_ns: Ints,
) -> None:
    """Events of one category; those with a negative or absurd time are counted and left out."""
    kind = kind_of(category)
    if kind is None:
        return
    if kind == "unknown":
        gathered.leave_out(unknown_category=len(events))
        return
    good = (start_ns >= 0) & (duration_ns >= 0)
    if not good.all():
        gathered.leave_out(bad_times=len(events) - int(np.count_nonzero(good)))
        events = [event for event, is_good in zip(events, good, strict=True) if is_good]
        start_ns, duration_ns = start_ns[good], duration_ns[good]
    names = gathered.names
    rows: Rows = {
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "kind": np.full(len(events), int(kind), np.uint8),
        "name": np.array([names[each.name] for each in events], np.int32),
    }
    arguments = [each.args or _NO_ARGUMENTS for each in events]
    if isinstance(kind, GpuKind):
        gathered.gpu.append(rows | _gpu_rows(gathered, kind, events, arguments))
    else:
        gathered.host.append(rows | _host_rows(gathered, kind, events, arguments))


def _host_rows(
    gathered: Gathered, kind: HostKind, events: Sequence[Any], arguments: Sequence[Arguments]
) -> Rows:
    threads, shapes = gathered.threads, gathered.shapes
    nothing = np.full(len(events), NONE)
    rows: Rows = {
        "thread": np.array([threads[each.pid, each.tid] for each in events], np.int32),
        "correlation": nothing,
        "sequence": nothing,
        "forward_thread": nothing,
        "shape": nothing,
    }
    if kind == HostKind.CALL:
        rows["correlation"] = _integers([each.correlation for each in arguments])
    elif kind == HostKind.OP:
        rows["sequence"] = _integers([each.sequence for each in arguments])
        rows["forward_thread"] = _integers([each.forward_thread for each in arguments])
        rows["shape"] = np.array(
            [
                NONE
                if each.dims is ABSENT and each.types is ABSENT and each.concrete is ABSENT
                else shapes[b"[%b,%b,%b]" % (each.dims, each.types, each.concrete)]
                for each in arguments
            ],
            np.int32,
        )
    return rows


def _gpu_rows(
    gathered: Gathered, kind: GpuKind, events: Sequence[Any], arguments: Sequence[Arguments]
) -> Rows:
    processes = gathered.gpu_processes
    device = _integers([each.device for each in arguments])
    if NONE in device:  # Kineto gives GPU work the device as its pid and the stream as its tid.
        device = np.where(device == NONE, _integers([each.pid for each in events]), device)
    stream = _integers([each.stream for each in arguments])
    if NONE in stream:
        stream = np.where(stream == NONE, _integers([each.tid for each in events]), stream)
    if kind == GpuKind.KERNEL:
        n_bytes = np.full(len(events), NONE)
    else:
        n_bytes = _integers([each.n_bytes for each in arguments])
    return {
        "device": np.where((device >= 0) & (device < 2**31), device, NONE),
        "stream": stream,
        "process": np.array([processes[each.pid] for each in events], np.int32),
        "correlation": _integers([each.correlation for each in arguments]),
        "n_bytes": n_bytes,
        "graph": _integers([each.graph for each in arguments]),
    }


def _integers(values: Sequence[Any]) -> Ints:
    """As they are, or from strings; NONE for what is no integer of 64 bits."""
    found = np.array(values) if values else np.empty(0, np.int64)
    return found if found.dtype == np.int64 else np.array([*map(_integer, values)], np.int64)


def _integer(value: object) -> int:
    try:
        whole = int(value) if isinstance(value, int | float | str) else NONE
    except (ValueError, OverflowError):
        return NONE
    return whole if -(2**63) <= whole < 2**63 else NONE


def _add_others(gathered: Gathered, events: Sequence[Event]) -> None:
    for event in events:
        if type(event) is Begin or type(event) is End:
            gathered.halves.append(on_its_own(event))
            gathered.others_n_bytes += 300 + _text_bytes(event)
        elif type(event) is About and event.name == "thread_name":
            try:
                name = msgspec.json.decode(event.args, type=ThreadName).name
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            gathered.thread_names[id_text(event.pid), id_text(event.tid)] = name
            gathered.others_n_bytes += 300 + size_of(name)


def _text_bytes(half: Begin | End) -> int:
    if isinstance(half, End) or half.args is None:
        return size_of(getattr(half, "name", ""))
    args = half.args
    return size_of(half.name) + sum(
        len(bytes(each)) for each in (args.dims, args.types, args.concrete)
    )
