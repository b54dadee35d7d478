"""Links each piece of GPU work to the call that launched it."""

import numpy as np
from numpy.typing import NDArray

from peakward.traces.calls import LAUNCHES, CallKind, call_kinds
from peakward.traces.table import NONE, Codes, HostColumns, HostKind, Indices, Ints, TraceTable


def launch_rows(table: TraceTable) -> Indices:
    """For each row of `table.gpu`, the row of `table.host` that launched it, or NONE.

    That is the CALL with the same correlation in the same process. Correlations of 0 and below link nothing.
    Among several calls with one correlation, launching calls go first, and among these the last that begins
    before the work: profilers restart their numbers. If several exist and none begins before the work, its
    launch is not in the trace. A call that alone has the correlation is used whatever the clocks say.
    """
    calls = _candidates(table)
    if not len(calls):
        return np.full(len(table.gpu), NONE, dtype=np.int32)
    correlations = np.sort(table.host.correlation[calls], kind="stable")
    owner = table.process_of_thread[table.host.thread[calls]]
    key = _key(correlations, table.host.correlation[calls], owner)
    kept = _launches_first(key, np.isin(call_kinds(table)[calls], LAUNCHES))
    calls, key = calls[kept], key[kept]
    order = np.lexsort((table.host.start_ns[calls], key))
    calls, key = calls[order], key[order]
    return _latest_before(
        table, calls, key, _key(correlations, table.gpu.correlation, table.gpu.process)
    )


def first_of_launch(launches: Indices) -> NDArray[np.bool_]:
    """For each GPU row whether it starts first among the work of its launch: true for all but the later work
    of a graph, and where the launch is unknown."""
    first = np.equal(launches, NONE)
    if not first.all():
        earliest = np.full(int(launches.max()) + 1, NONE, dtype=np.int64)
        backwards = np.flatnonzero(~first)[::-1]
        earliest[launches[backwards]] = backwards
        first[earliest[earliest != NONE]] = True
    return first


def call_returns(host: HostColumns, kinds: Codes, calls: Indices | Ints) -> Ints:
    """The time at which each launching call has returned: its end, or for a copy that blocks the host its
    beginning. `kinds` is the result of `call_kinds`. For call NONE the value means nothing."""
    if not len(host):
        return np.full(len(calls), NONE, dtype=np.int64)
    blocks = kinds[calls] == CallKind.BLOCKING_MOVE
    return np.where(blocks, host.start_ns[calls], host.end_ns[calls])


def _candidates(table: TraceTable) -> NDArray[np.intp]:
    return np.flatnonzero((table.host.kind == HostKind.CALL) & (table.host.correlation > 0))


def _key(correlations: Ints, correlation: Ints, process: Ints | Indices) -> Ints:
    """One number for each (process, correlation); NONE where no call has the correlation.

    `correlations` are those of all calls, sorted. Sorting is faster than making them unique, because they
    nearly are both already.
    """
    at = np.minimum(np.searchsorted(correlations, correlation), len(correlations) - 1)
    key = at + process.astype(np.int64) * len(correlations)
    return np.where(correlations[at] == correlation, key, NONE)


def _launches_first(key: Ints, is_launch: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of the remaining calls: where a key has a launch, only the launches."""
    return is_launch | ~np.isin(key, key[is_launch])


def _latest_before(table: TraceTable, calls: NDArray[np.intp], key: Ints, wanted: Ints) -> Indices:
    """For each GPU row the last call of its key, in the order of `calls`, that began by the row's start.

    A pair (key, position of the start among all the calls' starts) is one number, so one binary search finds
    both.
    """
    starts = np.sort(table.host.start_ns[calls], kind="stable")
    width = len(calls) + 1
    position = np.searchsorted(starts, table.host.start_ns[calls], side="left")
    begun = np.searchsorted(starts, table.gpu.start_ns, side="right")
    at = np.searchsorted(key * width + position, wanted * width + begun, side="left") - 1
    found = (at >= 0) & (key[np.maximum(at, 0)] == wanted)
    low = np.searchsorted(key, wanted, side="left")
    alone = np.searchsorted(key, wanted, side="right") - low == 1
    at = np.where(found, at, low)
    row = calls[np.clip(at, 0, len(calls) - 1)]
    return np.where(found | alone, row, NONE).astype(np.int32)
