"""Joins events that a trace writes as a beginning and an end (`ph` B and E)."""

from collections import defaultdict
from operator import itemgetter

import numpy as np

from peakward.traces.readers.gathered import Gathered
from peakward.traces.readers.json_times import nanoseconds_of_text
from peakward.traces.readers.torch_columns import Timed, add_timed
from peakward.traces.readers.torch_events import Begin, Id


def pair(gathered: Gathered) -> None:
    """Add the halves kept so far, in order of time. An end closes the last open event of its thread.

    Halves without a counterpart are counted as unmatched.
    """
    halves, gathered.halves = gathered.halves, []
    times = nanoseconds_of_text([each.ts for each in halves])
    open_by_thread: dict[tuple[Id, Id], list[tuple[Begin, int, int]]] = defaultdict(list)
    whole: list[tuple[int, Begin, int, int]] = []
    for position in np.argsort(times, kind="stable").tolist():
        half, time_ns = halves[position], int(times[position])
        still_open = open_by_thread[half.pid, half.tid]
        if isinstance(half, Begin):
            still_open.append((half, position, time_ns))
        elif still_open:
            begin, place, start_ns = still_open.pop()
            whole.append((place, begin, start_ns, time_ns - start_ns))
    gathered.leave_out(unmatched=len(halves) - 2 * len(whole))
    if whole:
        # Sorted by their beginnings in the file, because the places differ.
        _, begins, starts_ns, durations_ns = zip(*sorted(whole, key=itemgetter(0)), strict=True)
        add_timed(gathered, Timed(begins, np.array(starts_ns), np.array(durations_ns)))
