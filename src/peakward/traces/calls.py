"""Classifies calls into the CUDA or HIP runtime or driver by their name."""

import re
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from peakward.traces.by_name import by_name
from peakward.traces.table import Codes, HostColumns, HostKind, Table


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


def call_kinds(table: Table) -> Codes:
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
