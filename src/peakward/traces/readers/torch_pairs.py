"""Events that a trace gives as a beginning and an end (`ph` B and E) to whole ones."""

from collections import defaultdict

import numpy as np

from peakward.traces.readers.gathered import Gathered
from peakward.traces.readers.json_times import nanoseconds_of_text
from peakward.traces.readers.torch_columns import Timed, add_timed
from peakward.traces.readers.torch_events import Begin, Id


def pair(gathered: Gathered) -> None:
    """Take in the halves kept so far, in order of time, an end closing what its thread began last.

    What never ends or never began is counted as unmatched.
    """
    halves, gathered.halves = gathered.halves, []
    times = nanoseconds_of_text([each.ts for each in halves])
    open_by_thread: dict[tuple[Id, Id], list[tuple[Begin, int, int]]] = defaultdict(list)
    whole: dict[str, list[tuple[Begin, int, int, int]]] = defaultdict(list)
    for position in np.argsort(times, kind="stable").tolist():
        half, time_ns = halves[position], int(times[position])
        still_open = open_by_thread[half.pid, half.tid]
        if isinstance(half, Begin):
            still_open.append((half, position, time_ns))
        elif still_open:
            begin, place, start_ns = still_open.pop()
            whole[begin.cat or ""].append((begin, place, start_ns, time_ns - start_ns))
    n_whole = sum(map(len, whole.values()))
    gathered.leave_out(unmatched=len(halves) - 2 * n_whole)
    groups = []
    for category, found in whole.items():
        begins, *numbers = zip(*found, strict=True)
        groups.append(Timed(category, begins, *map(np.array, numbers)))
    add_timed(gathered, groups)
