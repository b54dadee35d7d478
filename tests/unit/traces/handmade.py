"""Small tables written by hand: rows in, a `TraceTable` out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from peakward.traces.table import (
    NONE,
    Device,
    Direction,
    GpuColumns,
    GpuKind,
    HostColumns,
    HostKind,
    Thread,
    TraceTable,
)


class Gpu(NamedTuple):
    """Work from `start` to `end`."""

    start: int
    end: int
    name: str = "kernel"
    correlation: int = NONE
    stream: int = 7
    device: int = 0
    process: int = 0
    kind: GpuKind = GpuKind.KERNEL
    n_bytes: int = NONE
    direction: Direction = Direction.UNKNOWN
    collective: str | None = None
    """What the trace says of it."""


class Host(NamedTuple):
    """A host row from `start` to `end`."""

    start: int
    end: int
    name: str = "cudaLaunchKernel"
    correlation: int = NONE
    kind: HostKind = HostKind.CALL
    thread: int = 0


def table(
    gpu: Sequence[Gpu] = (),
    host: Sequence[Host] = (),
    *,
    threads: Sequence[int] = (0,),
    source: str = "by hand",
) -> TraceTable:
    """A table of these rows; `threads` gives the process of each thread."""
    gpu = sorted(gpu, key=lambda row: row.start)
    host = sorted(host, key=lambda row: row.start)
    told = [row.collective for row in gpu if row.collective is not None]
    names = tuple(dict.fromkeys([*(row.name for row in (*gpu, *host)), *told]))
    positions = {name: at for at, name in enumerate(names)}
    n_processes = 1 + max([*threads, *(row.process for row in gpu)])
    return TraceTable(
        source=source,
        format="torch",
        gpu=_gpu(gpu, positions),
        host=_host(host, positions),
        names=names,
        shapes=(),
        processes=tuple(str(100 + at) for at in range(n_processes)),
        threads=tuple(Thread(process, str(at), None) for at, process in enumerate(threads)),
        devices=tuple(
            Device(device, None, None, None) for device in sorted({row.device for row in gpu})
        ),
        job=None,
        epoch_ns=None,
        limits=(),
    )


def _gpu(rows: Sequence[Gpu], positions: dict[str, int]) -> GpuColumns:
    return GpuColumns(
        start_ns=np.array([row.start for row in rows], dtype=np.int64),
        duration_ns=np.array([row.end - row.start for row in rows], dtype=np.int64),
        kind=np.array([row.kind for row in rows], dtype=np.uint8),
        name=np.array([positions[row.name] for row in rows], dtype=np.int32),
        device=np.array([row.device for row in rows], dtype=np.int32),
        stream=np.array([row.stream for row in rows], dtype=np.int64),
        process=np.array([row.process for row in rows], dtype=np.int32),
        correlation=np.array([row.correlation for row in rows], dtype=np.int64),
        n_bytes=np.array([row.n_bytes for row in rows], dtype=np.int64),
        direction=np.array([row.direction for row in rows], dtype=np.uint8),
        graph=np.full(len(rows), NONE, dtype=np.int64),
        collective=np.array(
            [NONE if row.collective is None else positions[row.collective] for row in rows],
            dtype=np.int32,
        ),
    )


def _host(rows: Sequence[Host], positions: dict[str, int]) -> HostColumns:
    return HostColumns(
        start_ns=np.array([row.start for row in rows], dtype=np.int64),
        duration_ns=np.array([row.end - row.start for row in rows], dtype=np.int64),
        kind=np.array([row.kind for row in rows], dtype=np.uint8),
        name=np.array([positions[row.name] for row in rows], dtype=np.int32),
        thread=np.array([row.thread for row in rows], dtype=np.int32),
        correlation=np.array([row.correlation for row in rows], dtype=np.int64),
        sequence=np.full(len(rows), NONE, dtype=np.int64),
        backward=np.zeros(len(rows), dtype=np.bool_),
        shape=np.full(len(rows), NONE, dtype=np.int32),
    )
