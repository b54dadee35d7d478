"""Builds the columns that only some events of a PyTorch trace have: ids, shapes, devices."""

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np

from peakward.traces.readers.gathered import Array, Gathered, Rows
from peakward.traces.readers.torch_events import ABSENT, Arguments
from peakward.traces.table import NONE, TOO_LARGE, GpuKind, HostKind, Ints

_NO_ARGUMENTS = Arguments()


def host_rows(gathered: Gathered, kind: Ints, events: Sequence[Any]) -> Rows:
    """All columns except the common ones: start, duration, kind and name."""
    shapes = gathered.shapes
    calls, ops = kind == HostKind.CALL, kind == HostKind.OP
    rows: Rows = {
        "thread": _threads(gathered, events),
        "correlation": np.full(len(events), NONE),
        "sequence": np.full(len(events), NONE),
        "backward": np.zeros(len(events), np.bool_),
        "shape": np.full(len(events), NONE, np.int32),
    }
    of_calls, of_ops = _arguments(events, calls), _arguments(events, ops)
    rows["correlation"][calls] = _integers([each.correlation for each in of_calls])
    rows["sequence"][ops] = _integers([each.sequence for each in of_ops])
    rows["backward"][ops] = _integers([each.forward_thread for each in of_ops]) > 0
    rows["shape"][ops] = [
        NONE
        if each.dims is ABSENT and each.types is ABSENT and each.concrete is ABSENT
        else shapes[b"[%b,%b,%b]" % (each.dims, each.types, each.concrete)]
        for each in of_ops
    ]
    return rows


def _arguments(events: Sequence[Any], chosen: Array) -> list[Arguments]:
    return [each.args or _NO_ARGUMENTS for each in compress(events, chosen.tolist())]


def _threads(gathered: Gathered, events: Sequence[Any]) -> Array:
    pids, tids = [each.pid for each in events], [each.tid for each in events]
    if pids.count(pids[0]) == len(pids):
        # Pairs are requested once for each thread and not for each event: that saves 5% of the whole reading.
        known = {tid: gathered.threads[pids[0], tid] for tid in dict.fromkeys(tids)}
        return np.array([known[tid] for tid in tids], np.int32)
    return np.array([gathered.threads[pair] for pair in zip(pids, tids, strict=True)], np.int32)


def gpu_rows(gathered: Gathered, kind: Ints, events: Sequence[Any]) -> Rows:
    """All columns except the common ones, for GPU work."""
    processes = gathered.gpu_processes
    arguments = [each.args or _NO_ARGUMENTS for each in events]
    device = _integers([each.device for each in arguments])
    if NONE in device:  # Kineto gives GPU work the device as its pid and the stream as its tid.
        device = np.where(device == NONE, _integers([each.pid for each in events]), device)
    stream = _integers([each.stream for each in arguments])
    if NONE in stream:
        stream = np.where(stream == NONE, _integers([each.tid for each in events]), stream)
    n_bytes = _integers([each.n_bytes for each in arguments])
    sized = (kind != GpuKind.KERNEL) & (n_bytes >= 0) & (n_bytes < TOO_LARGE)
    return {
        "device": np.where((device >= 0) & (device < 2**31), device, NONE),
        "stream": stream,
        "process": np.array([processes[each.pid] for each in events], np.int32),
        "correlation": _integers([each.correlation for each in arguments]),
        "n_bytes": np.where(sized, n_bytes, NONE),
        "graph": _integers([each.graph for each in arguments]),
    }


def _integers(values: Sequence[Any]) -> Ints:
    """The integers, also from strings; NONE for values that are not 64-bit integers."""
    found = np.array(values) if values else np.empty(0, np.int64)
    return found if found.dtype == np.int64 else np.array([*map(_integer, values)], np.int64)


def _integer(value: object) -> int:
    try:
        whole = int(value) if isinstance(value, int | float | str) else NONE
    except (ValueError, OverflowError):
        return NONE
    return whole if -(2**63) <= whole < 2**63 else NONE
