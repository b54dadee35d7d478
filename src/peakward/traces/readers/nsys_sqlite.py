"""Reads the files of `nsys export --type sqlite`.

A table exists only when it has rows, and columns come and go between versions (this follows schema 3.25 of
Nsight Systems 2026.2 and its documentation, "SQLite Schema Reference").
"""

from pathlib import Path

import numpy as np

from peakward.records.errors import PeakwardError
from peakward.traces.readers.nsys import identity
from peakward.traces.readers.nsys.database import Export, opened
from peakward.traces.readers.nsys.file import one_line
from peakward.traces.readers.nsys.gpu import gpu_rows
from peakward.traces.readers.nsys.host import host_rows
from peakward.traces.readers.nsys.intervals import Columns
from peakward.traces.readers.nsys.names import Names
from peakward.traces.table import NONE, GpuColumns, HostColumns, Ints, Table

_WORK = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)


def read(path: Path) -> Table:
    """The export at `path` as a table. Raises PeakwardError where it is not one, or damaged.

    Calls and GPU work are linked by correlation within a process. NVTX ranges, and the operators among them
    (see `nsys.nvtx.label`), are host rows; marks and operating system calls are not.
    """
    return read_as(path, path)


def read_as(path: Path, source: Path) -> Table:
    """The export, under the name `source` in messages and in the table."""
    with opened(path, one_line(source)) as export:
        _refuse_other_programs(export, one_line(source))
        return _table(export, source.name)


def _refuse_other_programs(export: Export, source: str) -> None:
    if any(each in export for each in _WORK):
        return
    if "META_DATA_EXPORT" in export.names:
        raise PeakwardError(
            f"expected a capture with CUDA or NVTX in it, got an export with neither at {source}: "
            "record with `nsys profile --trace=cuda,nvtx`"
        )
    names = ", ".join(sorted(one_line(each)[:40] for each in export.names)[:5]) or "none"
    raise PeakwardError(
        f"expected an Nsight Systems SQLite export with at least one of {', '.join(_WORK)}, got a "
        f"database with the tables: {names}, at {source}: "
        "export a report with `nsys export --type sqlite`"
    )


def _table(export: Export, source: str) -> Table:
    names, shapes = Names(), Names()
    gpu, gpu_limits = gpu_rows(export, names)
    last_gpu_ns = int(gpu["end"].max(initial=NONE))
    host, host_limits = host_rows(export, names, shapes, last_gpu_ns)
    if not len(gpu["start"]) and not len(host["start"]) and (gpu_limits or host_limits):
        raise PeakwardError(
            f"{'; '.join((*gpu_limits, *host_limits))}. Expected rows of work that can be read, got "
            f"none in {source}: export the report again"
        )
    gpu, host = _sorted(gpu), _sorted(host)
    process, known, labels = identity.processes(gpu["globalPid"], host["globalTid"])
    thread, threads = identity.threads(export, host["globalTid"], known)
    device, devices = identity.devices(export, gpu["deviceId"], process, known)
    return Table(
        source=source,
        format="nsys",
        gpu=_gpu_columns(gpu, process, device),
        host=_host_columns(host, thread),
        names=names.all(),
        shapes=shapes.all(),
        processes=labels,
        threads=threads,
        devices=devices,
        job=None,
        epoch_ns=identity.epoch_ns(export, int(host["end"].max(initial=last_gpu_ns))),
        limits=(*gpu_limits, *host_limits),
    )


def _sorted(rows: Columns) -> Columns:
    """Sort by start; of rows with one start the longest first, as a parent before its children."""
    order = np.lexsort((-rows["end"], rows["start"]))
    return {name: column[order] for name, column in rows.items()}


def _gpu_columns(rows: Columns, process: Ints, device: Ints) -> GpuColumns:
    return GpuColumns(
        start_ns=rows["start"],
        duration_ns=rows["end"] - rows["start"],
        kind=rows["kind"].astype(np.uint8),
        name=rows["name"].astype(np.int32),
        device=device.astype(np.int32),
        stream=rows["streamId"],
        process=process.astype(np.int32),
        correlation=rows["correlationId"],
        n_bytes=rows["bytes"],
        direction=rows["direction"].astype(np.uint8),
        graph=rows["graph"],
    )


def _host_columns(rows: Columns, thread: Ints) -> HostColumns:
    return HostColumns(
        start_ns=rows["start"],
        duration_ns=rows["end"] - rows["start"],
        kind=rows["kind"].astype(np.uint8),
        name=rows["name"].astype(np.int32),
        thread=thread.astype(np.int32),
        correlation=rows["correlationId"],
        sequence=rows["sequence"],
        backward=np.zeros(len(thread), np.bool_),
        shape=rows["shape"].astype(np.int32),
    )
