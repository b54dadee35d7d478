"""The host range in which each piece of GPU work was launched; autograd's rows and threads.

A backward pass of GPU work runs on a thread of autograd's own, while the thread that called `backward()`
waits. An open range on the waiting thread, for example one named by the user, therefore describes work that
autograd's thread launches.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peakward.traces.calls import by_name
from peakward.traces.intervals import nest, rows_of
from peakward.traces.table import NONE, HostKind, Indices, Ints, TraceTable


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


def launch_sites(table: TraceTable, launches: Indices) -> Launches:
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


def innermost_at(table: TraceTable, sites: Launches, rows: NDArray[np.int64]) -> Indices:
    """For each GPU row the innermost of these host rows open at its launch, or NONE.

    Rows on the launching thread count first. Where none is open there, ranges on the thread that waits for it
    count, but not operators: another thread's launch is not part of an operator.
    """
    found = nest(table.host, rows).innermost(sites.thread, sites.at_ns)
    ranges = rows[table.host.kind[rows] == HostKind.RANGE]
    lent = nest(table.host, ranges).innermost(sites.waiting, sites.at_ns)
    return np.where(found == NONE, lent, found)


def named_range(table: TraceTable, launches: Indices, name: str) -> NamedRange:
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


_NODE = re.compile(
    r"autograd::engine::evaluate_function|torch::autograd::|\w*[a-zA-Z0-9]Backward\d*$"
)
"""`MmBackward0`, `CompiledFunctionBackward`, `torch::autograd::AccumulateGrad` and the rows that run them."""


def named(
    table: TraceTable, rows: NDArray[np.integer], pattern: re.Pattern[str]
) -> NDArray[np.bool_]:
    """For each of these host rows whether its name begins with the pattern.

    Only the names of these rows are checked: a trace may have 200,000 names of kernels.
    """
    begins = by_name(table.names, table.host.name[rows], lambda name: bool(pattern.match(name)))
    return begins.astype(np.bool_)


def backward_rows(table: TraceTable) -> NDArray[np.int64]:
    """Positions of autograd's own operators and ranges: the nodes of a backward pass."""
    host = table.host
    rows = rows_of(host, (HostKind.OP, HostKind.RANGE))
    node = named(table, rows, _NODE)
    return rows[node | (host.backward[rows])]


def processes_of(table: TraceTable) -> Indices:
    """The position of the process of each host row."""
    return table.process_of_thread[table.host.thread]


def waiting_threads(table: TraceTable) -> Indices:
    """For each thread the thread of its process that waits while it runs a backward pass; NONE for the
    waiting thread itself.

    The waiting thread ran the forward operators whose sequence numbers most of the backward ones carry. For a
    thread without such numbers, or without operators at all, it is the main thread of the process: the one
    with the most numbered forward operators. Without those it is, preferably among threads without backward
    nodes, the one with the most operators and ranges.
    """
    process = table.process_of_thread
    by_sequence = _forward_threads(table, process)
    waiting = np.where(by_sequence != NONE, by_sequence, _main_threads(table, process)[process])
    return np.where(waiting == np.arange(len(process)), NONE, waiting).astype(np.int32)


def _main_threads(table: TraceTable, process: Indices) -> Indices:
    """For each process its main thread; NONE where no thread has operators or ranges."""
    host, n_threads = table.host, len(process)
    rows, backward = rows_of(host, (HostKind.OP, HostKind.RANGE)), backward_rows(table)
    forward = np.setdiff1d(rows[host.sequence[rows] >= 0], backward, assume_unique=True)
    n_rows, n_backward, n_forward = (
        np.bincount(host.thread[of], minlength=n_threads) for of in (rows, backward, forward)
    )
    order = np.lexsort((n_rows, n_backward == 0, n_forward))
    order = order[n_rows[order] > 0]
    main = np.full(len(table.processes), NONE, dtype=np.int32)
    main[process[order]] = order
    return main


def _forward_threads(table: TraceTable, process: Indices) -> Indices:
    """For each thread the other thread with the forward operators of its backward ones, or NONE."""
    host, n_threads = table.host, len(process)
    ops = rows_of(host, (HostKind.OP,))
    ops = ops[host.sequence[ops] >= 0]
    thread = host.thread[ops].astype(np.int64)
    number = _dense(host.sequence[ops]) * len(table.processes) + process[thread]
    backward = np.isin(ops, backward_rows(table), assume_unique=True)
    ran = np.unique((number * n_threads + thread)[~backward])
    asked, asking = number[backward], thread[backward]
    low = np.searchsorted(ran, asked * n_threads)
    n_found = np.searchsorted(ran, (asked + 1) * n_threads) - low
    found = np.repeat(low - np.cumsum(n_found) + n_found, n_found) + np.arange(n_found.sum())
    votes = np.repeat(asking, n_found) * n_threads + ran[found] % n_threads
    pairs, n_votes = np.unique(votes, return_counts=True)
    pairs, n_votes = (each[pairs // n_threads != pairs % n_threads] for each in (pairs, n_votes))
    forward = np.full(n_threads, NONE, dtype=np.int32)
    order = np.argsort(n_votes, kind="stable")
    forward[pairs[order] // n_threads] = pairs[order] % n_threads
    return forward


def _dense(numbers: Ints) -> Ints:
    """The same numbers counted from 0 without gaps."""
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)
