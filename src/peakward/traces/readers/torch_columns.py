"""Adds decoded events of a PyTorch trace as rows to the growing columns."""

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from peakward.traces.readers.gathered import Gathered, Rows, size_of
from peakward.traces.readers.json_times import nanoseconds, nanoseconds_of_text
from peakward.traces.readers.torch_events import (
    About,
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
from peakward.traces.readers.torch_kinds import foreign_category, foreign_device, kind_of
from peakward.traces.readers.torch_rows import gpu_rows, host_rows
from peakward.traces.table import TOO_LARGE, GpuKind, Ints

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
    args = half.args
    return size_of(half.name) + sum(
        len(bytes(each)) for each in (args.dims, args.types, args.concrete)
    )
