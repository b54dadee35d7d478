"""Which interval is the innermost around another."""

import numpy as np
from numpy.typing import NDArray

from peakward.traces.table import NONE, HostColumns, Indices, Ints


def innermost(host: HostColumns, around: NDArray[np.intp], rows: NDArray[np.intp]) -> Indices:
    """For each of the host rows `rows`, that of `around` on the same thread which covers it whole and
    begins last (of those that begin together, the shortest), or NONE. The two have no row in common.
    """
    found = np.full(len(rows), NONE, dtype=np.int32)
    for thread in np.unique(host.thread[rows]):
        here = np.flatnonzero(host.thread[rows] == thread)
        candidates = around[host.thread[around] == thread]
        starts, ends = host.start_ns[candidates], host.end_ns[candidates]
        order = np.lexsort((-ends, starts))
        asked = rows[here]
        at = last_covering(starts[order], ends[order], host.start_ns[asked], host.end_ns[asked])
        if len(candidates):
            found[here] = np.where(at == NONE, NONE, candidates[order][at])
    return found


def last_covering(start: Ints, end: Ints, from_: Ints, until: Ints) -> NDArray[np.intp]:
    """For each interval asked about, the position of the last, in the order given, of the intervals
    [start, end) that begin by its start and end at or after its end; NONE where there is none.

    `start` must be sorted. A tree of the latest end among 1, 2, 4, … neighbours is climbed from the
    last that begins in time to the first block that holds an answer, and descended to it.
    """
    tree = _latest_ends(end)
    found = np.full(len(from_), NONE, dtype=np.intp)
    asked = np.arange(len(from_))
    at = np.searchsorted(start, from_, side="right")
    for height, latest in enumerate(tree):
        left = at - 1
        holds = (at % 2 == 1) & (latest[left] >= until[asked])
        found[asked[holds]] = _descend(tree, height, left[holds], until[asked[holds]])
        asked, at = asked[~holds], at[~holds] // 2
    return found


def _descend(tree: list[Ints], height: int, at: NDArray[np.intp], until: Ints) -> NDArray[np.intp]:
    """From blocks that hold an answer to the last single interval in each that is one."""
    for latest in tree[:height][::-1]:
        right = 2 * at + 1
        at = np.where(latest[right] >= until, right, right - 1)
    return at


def _latest_ends(end: Ints) -> list[Ints]:
    """The ends, then the later of each pair, and so on up to one; every level but the last is even."""
    lowest = np.iinfo(np.int64).min
    size = 1 << max(len(end) - 1, 0).bit_length() if len(end) else 1
    tree = [np.concatenate((end, np.full(2 * size - len(end), lowest)))]
    while len(tree[-1]) > 1:
        tree.append(tree[-1].reshape(-1, 2).max(axis=1))
    return tree
