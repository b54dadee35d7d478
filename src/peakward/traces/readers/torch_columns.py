"""Decoded events of a PyTorch trace to rows of the columns that grow."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from peakward.traces.readers.gathered import Gathered, Rows, size_of
from peakward.traces.readers.json_times import nanoseconds, nanoseconds_of_text
from peakward.traces.readers.torch_events import (
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
from peakward.traces.readers.torch_rows import gpu_rows, host_rows
from peakward.traces.table import GpuKind, Ints

_NO_ARGUMENTS = Arguments()
_LEGACY_CATEGORIES: dict[Id, str] = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
"""By pid, of events without a category: what torch's profiler wrote before Kineto."""


_OTHERS = frozenset({Begin, End, About})


class InexactTimes(Exception):
    """The times must be decoded as text."""


def add(gathered: Gathered, events: Sequence[Event]) -> None:
    """Take them in, all or none.

    Raises:
        InexactTimes: numbers may have lost digits in decoding; nothing was taken in.
    """
    found: dict[str | None, list[Complete]] = {}
    others: list[Event] = []
    for event in events:
        if type(event) is Complete or type(event) is CompleteAsText:
            try:
                found[event.cat].append(event)
            except KeyError:
                found[event.cat] = [event]
        elif type(event) in _OTHERS:
            others.append(event)
    timed = [(category, group, *_times(group)) for category, group in _named(found)]
    for each in timed:
        add_timed(gathered, *each)
    _add_others(gathered, others)
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
    if not events:
        return
    names = gathered.names
    rows: Rows = {
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "kind": np.full(len(events), int(kind), np.uint8),
        "name": np.array([names[each.name] for each in events], np.int32),
    }
    arguments = [each.args or _NO_ARGUMENTS for each in events]
    if isinstance(kind, GpuKind):
        gathered.gpu.append(rows | gpu_rows(gathered, kind, events, arguments))
    else:
        gathered.host.append(rows | host_rows(gathered, kind, events, arguments))


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
