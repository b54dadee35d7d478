"""The host's calls into the GPU's runtime and driver, by kind, and Python's garbage collections."""

import re
from collections.abc import Callable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import HostCall, HostWork
from peakward.traces.table import Codes, HostColumns, HostKind, Indices, TraceTable

COLLECT = re.compile(r"<built-in (?:function|method) collect(?: of module.*)?>$")
"""The name of a call of `gc.collect` in torch's profiler."""


def host_calls(table: TraceTable, among: NDArray[np.bool_] | None = None) -> HostWork:
    """Calls into the runtime by name, and garbage collections, among the host rows `among`; None: all."""
    host = table.host
    chosen = np.ones(len(host), dtype=np.bool_) if among is None else among
    python = np.flatnonzero((host.kind == HostKind.PYTHON) & chosen)
    collects = by_name(table.names, host.name[python], lambda name: bool(COLLECT.search(name)))
    return HostWork(
        calls=_calls(table, chosen),
        n_python=len(python),
        collections=_call(table, "gc.collect", python[collects == 1]),
    )


def rows_by_call(table: TraceTable) -> dict[str, NDArray[np.intp]]:
    """The rows of calls into the runtime and driver, by plain name."""
    host = table.host
    calls = np.flatnonzero(host.kind == HostKind.CALL)
    by_plain: dict[str, list[NDArray[np.intp]]] = {}
    for name in np.unique(host.name[calls]).tolist():
        rows = calls[host.name[calls] == name]
        by_plain.setdefault(plain_name(table.names[name]), []).append(rows)
    return {name: np.concatenate(rows) for name, rows in by_plain.items()}


def _calls(table: TraceTable, among: NDArray[np.bool_]) -> tuple[HostCall, ...]:
    made = (_call(table, name, rows[among[rows]]) for name, rows in rows_by_call(table).items())
    found = [each for each in made if each is not None]
    return tuple(sorted(found, key=lambda each: (-each.sum_ns, each.name)))


def _call(table: TraceTable, name: str, rows: NDArray[np.intp]) -> HostCall | None:
    if not len(rows):
        return None
    durations = table.host.duration_ns[rows]
    return HostCall(
        name=name, n=len(rows), sum_ns=int(durations.sum()), longest_ns=int(durations.max())
    )


class CallKind(IntEnum):
    """The effect of a call.

    `LAUNCH` hands the GPU a kernel, `GRAPH` a whole graph. `MOVE` is a copy or a set that the host does not
    wait for, `BLOCKING_MOVE` a copy that it waits for. `SYNCHRONISE` returns when a device, context, stream
    or event is done. `STREAM_WAIT` makes later work of a stream wait for an event without blocking the host.
    `OTHER` is any other call, and any row that is not a call.
    """

    OTHER = 0
    LAUNCH = 1
    GRAPH = 2
    MOVE = 3
    BLOCKING_MOVE = 4
    SYNCHRONISE = 5
    STREAM_WAIT = 6


LAUNCHES = (CallKind.LAUNCH, CallKind.GRAPH, CallKind.MOVE, CallKind.BLOCKING_MOVE)
"""Calls that hand the GPU work."""
WAITS = (CallKind.BLOCKING_MOVE, CallKind.SYNCHRONISE)
"""Calls that block the host until the GPU has made progress."""
_SUFFIX = re.compile(r"(_v\d+)?(_pt[sd][sz])?(_v\d+)?$")
_KINDS = tuple(
    (re.compile(r"(?:cuda|cu|hip)" + rest), kind)
    for rest, kind in (
        (r"(?:Device|Ctx|Context|Thread|Stream|Event)Synchronize$", CallKind.SYNCHRONISE),
        (r"StreamWait(?:Event|Value)", CallKind.STREAM_WAIT),
        (r"GraphLaunch$", CallKind.GRAPH),
        (r"(?:Ext|Module|ExtModule|HccModule)?Launch(?!HostFunc)", CallKind.LAUNCH),
        (r"Memcpy(?!.*(?:Async|Batch|Peer|DtoD|AtoA|DtoA|AtoD))", CallKind.BLOCKING_MOVE),
        (r"Mem(?:cpy|set|Prefetch)", CallKind.MOVE),
    )
)


def plain_name(name: str) -> str:
    """A call's name without Nsight Systems' additions: `cudaLaunchKernel_v7000` becomes
    `cudaLaunchKernel`."""
    return _SUFFIX.sub("", name, count=1)


def call_kind(name: str) -> CallKind:
    """The kind of the call with this name.

    `hipMemcpyWithStream` blocks: it is HIP's copy on a stream that waits for it. Copies between the memories
    of devices do not block the host, whatever their name.
    """
    plain = plain_name(name)
    return next((kind for pattern, kind in _KINDS if pattern.match(plain)), CallKind.OTHER)


def call_kinds(table: TraceTable) -> Codes:
    """The CallKind of each row of `table.host`."""
    kinds = np.zeros(len(table.host), dtype=np.uint8)
    calls = np.flatnonzero(table.host.kind == HostKind.CALL)
    kinds[calls] = by_name(table.names, table.host.name[calls], call_kind)
    return kinds


def after_stream_wait(host: HostColumns, kinds: Codes) -> NDArray[np.bool_]:
    """Mask of the host's launches that directly follow a stream wait on their thread: their work may wait for
    an event. `kinds` is the result of `call_kinds`."""
    rows = np.flatnonzero(np.isin(kinds, (*LAUNCHES, CallKind.STREAM_WAIT)))
    rows = rows[np.lexsort((host.start_ns[rows], host.thread[rows]))]
    waits = kinds[rows] == CallKind.STREAM_WAIT
    same_thread = host.thread[rows[1:]] == host.thread[rows[:-1]]
    found = np.zeros(len(kinds), dtype=np.bool_)
    found[rows[1:]] = waits[:-1] & ~waits[1:] & same_thread
    return found


def by_name(names: tuple[str, ...], rows: Indices, code: Callable[[str], int]) -> Codes:
    """The code (0 to 255) of the name of each row; `rows` are positions in `names`."""
    of_name = np.zeros(len(names), dtype=np.uint8)
    for at in np.flatnonzero(np.bincount(rows, minlength=len(names))):
        of_name[at] = code(names[at])
    return of_name[rows]
