"""The host range or operator in which each piece of GPU work was launched."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peakward.traces.marks import waiting_threads
from peakward.traces.nesting import nest, rows_of
from peakward.traces.table import NONE, HostKind, Indices, Ints, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The place and time of each GPU row's launch; NONE everywhere where the trace does not tell."""

    thread: Indices
    waiting: Indices
    """The thread that waits for the launching one, as the caller of a backward pass does."""
    at_ns: Ints
    """The beginning of the launching call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRange:
    """The instances of a range, and the GPU work launched inside each."""

    rows: Indices
    """Positions in `Table.host` of the instances, by start."""
    start_ns: Ints
    end_ns: Ints
    instance: Indices
    """For each GPU row the position in `rows` of the innermost instance; NONE outside all."""

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Mask of the GPU rows launched inside any instance."""
        return np.not_equal(self.instance, NONE)


def launch_sites(table: Table, launches: Indices) -> Launches:
    """The thread and time of each GPU row's launch. `launches` has the call's position in `host`."""
    known = launches != NONE
    call = np.where(known, launches, 0)
    if not len(table.host):
        nowhere = np.full(len(launches), NONE, dtype=np.int32)
        return Launches(thread=nowhere, waiting=nowhere, at_ns=nowhere.astype(np.int64))
    thread = np.where(known, table.host.thread[call], NONE).astype(np.int32)
    waiting = np.where(thread != NONE, waiting_threads(table)[thread], NONE).astype(np.int32)
    return Launches(
        thread=thread, waiting=waiting, at_ns=np.where(known, table.host.start_ns[call], NONE)
    )


def innermost_at(table: Table, sites: Launches, rows: NDArray[np.int64]) -> Indices:
    """For each GPU row the innermost of these host rows open at its launch, or NONE.

    Rows on the launching thread count first. Where none is open there, ranges on the thread that waits for it
    count, but not operators: another thread's launch is not part of an operator.
    """
    found = nest(table.host, rows).innermost(sites.thread, sites.at_ns)
    ranges = rows[table.host.kind[rows] == HostKind.RANGE]
    lent = nest(table.host, ranges).innermost(sites.waiting, sites.at_ns)
    return np.where(found == NONE, lent, found)


def named_range(table: Table, launches: Indices, name: str) -> NamedRange:
    """The ranges or operators of exactly this name, and the GPU work launched inside, at any depth.

    A name without any row gives a range without instances.
    """
    host = table.host
    of_name = host.name == (table.names.index(name) if name in table.names else NONE)
    rows = rows_of(host, (HostKind.RANGE, HostKind.OP))
    rows = rows[of_name[rows]]
    row = innermost_at(table, launch_sites(table, launches), rows)
    instance = np.where(row == NONE, NONE, np.searchsorted(rows, row))
    return NamedRange(
        rows=rows.astype(np.int32),
        start_ns=host.start_ns[rows],
        end_ns=host.end_ns[rows],
        instance=instance.astype(np.int32),
    )
