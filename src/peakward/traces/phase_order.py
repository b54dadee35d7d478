"""What the order of events on the host says where no name does."""

import numpy as np
from numpy.typing import NDArray

from peakward.traces.marks import processes_of
from peakward.traces.table import NONE, Indices, Ints, Table


def next_is(
    table: Table,
    wanted: NDArray[np.int64],
    others: NDArray[np.int64],
    process: Indices,
    at_ns: Ints,
) -> NDArray[np.bool_]:
    """For each process and time, whether a `wanted` row starts then or later, before any of `others`.

    A process of NONE has no rows. Of rows that start together a wanted one counts as the first.
    """
    rows = np.concatenate([wanted, others])
    is_wanted = np.arange(len(rows)) < len(wanted)
    start, of_process = table.host.start_ns[rows], processes_of(table)[rows]
    found = np.zeros(len(at_ns), dtype=bool)
    for each in np.unique(of_process[is_wanted]):
        here = np.flatnonzero(of_process == each)
        here = here[np.lexsort((~is_wanted[here], start[here]))]
        asked = np.flatnonzero((process == each) & (process != NONE))
        following = np.searchsorted(start[here], at_ns[asked])
        found[asked] = np.append(is_wanted[here], False)[following]
    return found
