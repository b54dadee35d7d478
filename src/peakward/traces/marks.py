"""The traces of autograd: which rows are its own, and which thread waits for which.

A backward pass of GPU work runs on a thread of autograd's own, while the thread that called `backward()`
waits. An open range on the waiting thread, for example one named by the user, therefore describes work that
autograd's thread launches.
"""

import re

import numpy as np
from numpy.typing import NDArray

from peakward.traces.by_name import by_name
from peakward.traces.nesting import rows_of
from peakward.traces.table import NONE, HostKind, Indices, Ints, Table

_NODE = re.compile(
    r"autograd::engine::evaluate_function|torch::autograd::|\w*[a-zA-Z0-9]Backward\d*$"
)
"""`MmBackward0`, `CompiledFunctionBackward`, `torch::autograd::AccumulateGrad` and the rows that run them."""


def named(table: Table, rows: NDArray[np.integer], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """For each of these host rows whether its name begins with the pattern.

    Only the names of these rows are checked: a trace may have 200,000 names of kernels.
    """
    begins = by_name(table.names, table.host.name[rows], lambda name: bool(pattern.match(name)))
    return begins.astype(np.bool_)


def backward_rows(table: Table) -> NDArray[np.int64]:
    """Positions of autograd's own operators and ranges: the nodes of a backward pass."""
    host = table.host
    rows = rows_of(host, (HostKind.OP, HostKind.RANGE))
    node = named(table, rows, _NODE)
    return rows[node | (host.backward[rows])]


def processes_of(table: Table) -> Indices:
    """The position of the process of each host row."""
    return table.process_of_thread[table.host.thread]


def waiting_threads(table: Table) -> Indices:
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


def _main_threads(table: Table, process: Indices) -> Indices:
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


def _forward_threads(table: Table, process: Indices) -> Indices:
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
