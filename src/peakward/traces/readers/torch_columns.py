"""Decoded events of a PyTorch trace to rows of the columns that grow."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

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
from peakward.traces.table import TOO_LARGE, GpuKind, HostKind, Ints

_NO_ARGUMENTS = Arguments()
_LEGACY_CATEGORIES: dict[Id, str] = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
"""By pid, of events without a category: what torch's profiler wrote before Kineto."""


_Group = tuple[list[Complete], list[int]]
"""Events, and their places."""
_ByCategory = dict[str | None, _Group]
_OTHERS = frozenset({Begin, End, About})


class InexactTimes(Exception):
    """The times must be decoded as text."""


class Timed(NamedTuple):
    """Events of one category, with their places among all that are taken in at once."""

    category: str
    events: Sequence[Complete | Begin]
    places: Ints
    start_ns: Ints
    duration_ns: Ints


def add(gathered: Gathered, events: Sequence[Event]) -> None:
    """Take them in, all or none.

    Raises:
        InexactTimes: numbers may have lost digits in decoding; nothing was taken in.
    """
    found: _ByCategory = {}
    others: list[Event] = []
    for place, event in enumerate(events):
        if type(event) is Complete or type(event) is CompleteAsText:
            try:
                group, places = found[event.cat]
            except KeyError:
                group, places = found[event.cat] = [], []
            group.append(event)
            places.append(place)
        elif type(event) in _OTHERS:
            others.append(event)
    add_timed(
        gathered,
        [
            Timed(category, group, np.array(places), *_times(group))
            for category, (group, places) in _named(found)
        ],
    )
    _add_others(gathered, others)
    gathered.n_events += len(events)


def _named(by_category: _ByCategory) -> Iterator[tuple[str, _Group]]:
    legacy: dict[str, _Group] = {}
    for category, group in by_category.items():
        if category is not None:
            yield category, group
            continue
        for event, place in zip(*group, strict=True):
            events, places = legacy.setdefault(_LEGACY_CATEGORIES.get(event.pid, ""), ([], []))
            events.append(event)
            places.append(place)
    yield from legacy.items()


def _times(events: Sequence[Complete]) -> tuple[Ints, Ints]:
    starts, durations = [each.ts for each in events], [each.dur for each in events]
    if type(events[0]) is CompleteAsText:
        return nanoseconds_of_text(starts), nanoseconds_of_text(durations)  # type: ignore[arg-type]
    start_ns, duration_ns = nanoseconds(starts), nanoseconds(durations)
    if start_ns is None or duration_ns is None:
        raise InexactTimes
    return start_ns, duration_ns


def add_timed(gathered: Gathered, groups: Iterable[Timed]) -> None:
    """Events by category, to rows in the order of their places. Those with a negative or absurd time
    are counted and left out."""
    gpu: list[tuple[Ints, Rows]] = []
    host: list[tuple[Ints, Rows]] = []
    for each in groups:
        kind = kind_of(each.category)
        if kind is None:
            continue
        if kind == "unknown":
            gathered.leave_out(unknown_category=len(each.events))
            continue
        group = _good(gathered, each)
        if not group.events:
            continue
        arguments = [event.args or _NO_ARGUMENTS for event in group.events]
        rows = _common(gathered, kind, group)
        if isinstance(kind, GpuKind):
            rows |= gpu_rows(gathered, kind, group.events, arguments)
            gpu.append((group.places, rows))
        else:
            rows |= host_rows(gathered, kind, group.events, arguments)
            host.append((group.places, rows))
    for columns, parts in ((gathered.gpu, gpu), (gathered.host, host)):
        if parts:
            columns.append(_in_order(parts))


def _good(gathered: Gathered, group: Timed) -> Timed:
    """Less those whose times cannot be."""
    good = (group.start_ns >= 0) & (group.duration_ns >= 0) & (group.duration_ns < TOO_LARGE)
    if good.all():
        return group
    gathered.leave_out(bad_times=len(good) - int(np.count_nonzero(good)))
    return Timed(
        group.category,
        [event for event, is_good in zip(group.events, good, strict=True) if is_good],
        *(each[good] for each in group[2:]),
    )


def _common(gathered: Gathered, kind: GpuKind | HostKind, group: Timed) -> Rows:
    """The columns that every event has."""
    names = gathered.names
    return {
        "start_ns": group.start_ns,
        "duration_ns": group.duration_ns,
        "kind": np.full(len(group.events), int(kind), np.uint8),
        "name": np.array([names[each.name] for each in group.events], np.int32),
    }


def _in_order(parts: Sequence[tuple[Ints, Rows]]) -> Rows:
    """As they stand in the file, for which of two events of one start comes first must not depend on
    where a piece of it ends."""
    if len(parts) == 1:
        return parts[0][1]
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    return {name: np.concatenate([rows[name] for _, rows in parts])[order] for name in parts[0][1]}


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
