"""Which call of the host launched which work of the GPU."""

import numpy as np
from numpy.typing import NDArray

from peakward.traces.calls import LAUNCHES, CallKind, call_kinds
from peakward.traces.table import NONE, Codes, HostColumns, HostKind, Indices, Ints, Table


def launch_rows(table: Table) -> Indices:
    """For each row of `table.gpu`, the row of `table.host` that launched it, or NONE.

    That is the CALL with the same correlation in the same process; correlations of 0 and below tie
    nothing. Where several calls have it, those that hand the GPU work go before others, and among
    these the last that begins before the work does: profilers start their numbers again. If of several
    none begins before the work, its launch is not in the trace. A call that alone has the correlation
    is taken whatever the clocks say.
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
    """For each GPU row, given what launched it, whether it is the first work of its launch to start:
    all but the later ones of a graph. True where the launch is unknown."""
    first = np.equal(launches, NONE)
    if not first.all():
        earliest = np.full(int(launches.max()) + 1, NONE, dtype=np.int64)
        backwards = np.flatnonzero(~first)[::-1]
        earliest[launches[backwards]] = backwards
        first[earliest[earliest != NONE]] = True
    return first


def call_returns(host: HostColumns, kinds: Codes, calls: Indices | Ints) -> Ints:
    """When each call that launches has done so: at its end; a copy that blocks the host, when it
    begins. `kinds` is what `call_kinds` gives; of call NONE the answer means nothing."""
    if not len(host):
        return np.full(len(calls), NONE, dtype=np.int64)
    blocks = kinds[calls] == CallKind.BLOCKING_MOVE
    return np.where(blocks, host.start_ns[calls], host.end_ns[calls])


def _candidates(table: Table) -> NDArray[np.intp]:
    return np.flatnonzero((table.host.kind == HostKind.CALL) & (table.host.correlation > 0))


def _key(correlations: Ints, correlation: Ints, process: Ints | Indices) -> Ints:
    """One number for each (process, correlation); NONE where the correlation is no call's.

    `correlations` are all the calls', sorted (which is faster than making them unique: they nearly are
    both already).
    """
    at = np.minimum(np.searchsorted(correlations, correlation), len(correlations) - 1)
    key = at + process.astype(np.int64) * len(correlations)
    return np.where(correlations[at] == correlation, key, NONE)


def _launches_first(key: Ints, is_launch: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which calls remain: of those that share a key with a launch, only the launches."""
    return is_launch | ~np.isin(key, key[is_launch])


def _latest_before(table: Table, calls: NDArray[np.intp], key: Ints, wanted: Ints) -> Indices:
    """For each GPU row the last call of its key, in the order of `calls`, begun by the row's start.

    A pair (key, position of the start among all the calls' starts) is one number, so that one binary
    search looks for both.
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
