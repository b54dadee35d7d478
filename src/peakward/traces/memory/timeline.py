"""Allocated and reserved bytes over a recording, few enough to draw; and the open ranges at a moment."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from peakward.records.memory_snapshot import MemoryPoint
from peakward.traces.memory.balances import Balances
from peakward.traces.memory.table import Annotation, Events, Ints

N_STRETCHES: Final = 300


def times_us(events: Events) -> Ints:
    """The time of each position since the first event. It never decreases."""
    if not len(events):
        return np.zeros(1, np.int64)
    since = np.maximum.accumulate(events.time_us) - events.time_us[0]
    found: Ints = np.r_[0, since]
    return found


def timeline(found: Balances, time_us: Ints) -> tuple[MemoryPoint, ...]:
    """The maximum of each equally long stretch in which something happened, placed at the stretch's end. The
    first point lies before the first event."""
    width = max(int(time_us[-1]), 1) / N_STRETCHES
    stretch = np.minimum((time_us / width).astype(np.int64), N_STRETCHES - 1)
    first = np.flatnonzero(np.r_[True, stretch[1:] != stretch[:-1]])
    allocated = np.maximum.reduceat(found.allocated, first)
    reserved = np.maximum.reduceat(found.reserved, first)
    last = np.r_[first[1:] - 1, len(time_us) - 1]
    start = MemoryPoint(
        at_s=0.0, allocated_bytes=int(found.allocated[0]), reserved_bytes=int(found.reserved[0])
    )
    points = (
        MemoryPoint(at_s=int(time_us[end]) * 1e-6, allocated_bytes=int(a), reserved_bytes=int(r))
        for end, a, r in zip(last, allocated, reserved, strict=True)
    )
    return (start, *points)


def open_ranges(annotations: Sequence[Annotation], time_us: int) -> tuple[str, ...]:
    """Names of the ranges that have begun and not ended, outermost first. The annotations are of one device,
    in the order of their times."""
    opened: dict[int, str] = {}
    begun: dict[str, list[int]] = {}
    for number, each in enumerate(annotations):
        if each.time_us > time_us:
            break
        if each.stage.upper() == "START":
            opened[number] = each.name
            begun.setdefault(each.name, []).append(number)
        elif begun.get(each.name):
            del opened[begun[each.name].pop()]
    return tuple(opened.values())
