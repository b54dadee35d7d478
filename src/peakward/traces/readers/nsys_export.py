"""Reads Nsight Systems' exports (`nsys export --type sqlite`), and reports by exporting them.

A table exists only when it has rows, and columns come and go between versions (this follows schema 3.25 of
Nsight Systems 2026.2 and its documentation, "SQLite Schema Reference"). A global id has, from the top, 8 bits
of hardware, 8 of virtual machine, 24 of process and 24 of thread. A process's own id has 0 for the thread
(Nsight Systems' exporter documentation, "Serialized process and thread identifiers").
"""

import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from peakward.records.errors import PeakwardError
from peakward.traces.readers.nsys_database import Export, one_line, opened, size_of_regular
from peakward.traces.readers.nsys_rows import Columns, Names, gpu_rows, host_rows, joined
from peakward.traces.table import NONE, Device, GpuColumns, HostColumns, Ints, Thread, TraceTable

_WORK = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)


def read(path: Path) -> TraceTable:
    """The export at `path` as a table. Raises PeakwardError where it is not one, or damaged.

    Calls and GPU work are linked by correlation within a process. NVTX ranges, and the operators among them
    (see `nsys.nvtx.label`), are host rows; marks and operating system calls are not.
    """
    return read_as(path, path)


def read_as(path: Path, source: Path) -> TraceTable:
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


def _table(export: Export, source: str) -> TraceTable:
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
    process, known, labels = processes(gpu["globalPid"], host["globalTid"])
    thread, threads = threads_of(export, host["globalTid"], known)
    device, devices = devices_of(export, gpu["deviceId"], process, known)
    return TraceTable(
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
        epoch_ns=epoch_ns(export, int(host["end"].max(initial=last_gpu_ns))),
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
        collective=np.full(len(rows["graph"]), NONE, dtype=np.int32),
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


_ID_BITS = 24
_ID = (1 << _ID_BITS) - 1
_INT32 = (1 << 31) - 1


def processes(of_gpu: Ints, threads: Ints) -> tuple[Ints, Ints, tuple[str, ...]]:
    """For each GPU row the position of its process, the global ids by position, and their labels.

    `of_gpu` holds global process ids or NONE, `threads` global thread ids. GPU work of an unknown process
    belongs to the only process, or to a separate one called "unknown".
    """
    known = np.unique(np.concatenate([of_gpu[of_gpu != NONE], threads & ~np.int64(_ID)]))
    positions = np.searchsorted(known, of_gpu)
    if (of_gpu == NONE).any():
        positions[of_gpu == NONE] = 0 if len(known) == 1 else len(known)
        if len(known) != 1:
            return positions, known, (*_labels(known), "unknown")
    return positions, known, _labels(known)


def _labels(known: Ints) -> tuple[str, ...]:
    """Process ids. Ids that several machines share have the machine added."""
    pids = ((known >> _ID_BITS) & _ID).tolist()
    n_machines = Counter(pids)
    machines = (known >> 2 * _ID_BITS).tolist()
    return tuple(
        f"{pid}" if n_machines[pid] == 1 else f"{pid} on {machine & 0xFFFF:#x}"
        for pid, machine in zip(pids, machines, strict=True)
    )


def threads_of(export: Export, ids: Ints, known: Ints) -> tuple[Ints, tuple[Thread, ...]]:
    """For each row the position of its thread, and the threads."""
    unique, positions = np.unique(ids, return_inverse=True)
    rows = joined(
        [each.integers for each in export.chunks("ThreadNames", ("globalTid", "nameId"))],
        ("globalTid", "nameId"),
    )
    name_ids = dict(zip(rows["globalTid"].tolist(), rows["nameId"].tolist(), strict=True))
    values = export.strings({name_ids[each] for each in unique.tolist() if each in name_ids})
    owners = np.searchsorted(known, unique & ~np.int64(_ID)).tolist()
    return positions, tuple(
        Thread(owner, str(each & _ID), values.get(name_ids.get(each, NONE)))
        for each, owner in zip(unique.tolist(), owners, strict=True)
    )


def devices_of(
    export: Export, ordinals: Ints, processes: Ints, known: Ints
) -> tuple[Ints, tuple[Device, ...]]:
    """For each GPU row the GPU's id, and the GPUs that have rows. `ordinals` are below 2**31.

    CUDA counts the GPUs that a process may see, so one ordinal is two GPUs in two processes with different
    CUDA_VISIBLE_DEVICES. TARGET_INFO_CUDA_DEVICE tells them apart; where it lacks a pair of process and
    ordinal, the ordinals stand for themselves.
    """
    pairs, places = np.unique(processes << 31 | ordinals, return_inverse=True)
    seen = pairs & _INT32
    pids = np.append((known >> _ID_BITS) & _ID, NONE)[pairs >> 31]
    gpus = _gpus(export)
    named = [gpus.get(pair, NONE) for pair in zip(pids.tolist(), seen.tolist(), strict=True)]
    ids = seen if NONE in named else np.array(named, np.int64)
    described = _described(export)
    return ids[places], tuple(
        described.get(each, Device(each, None, None, None)) for each in np.unique(ids).tolist()
    )


def _gpus(export: Export) -> Mapping[tuple[int, int], int]:
    """The id of a GPU by process id and CUDA ordinal."""
    if not {"pid", "cudaId", "gpuId"} <= export.columns("TARGET_INFO_CUDA_DEVICE"):
        return {}
    return {
        (pid, ordinal): gpu
        for chunk in export.chunks("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
        for pid, ordinal, gpu in zip(
            *(each.tolist() for each in chunk.integers.values()), strict=True
        )
        if 0 <= gpu < _INT32
    }


def _described(export: Export) -> Mapping[int, Device]:
    if "id" not in export.columns("TARGET_INFO_GPU"):
        return {}
    return {
        id_: Device(id_, name, memory if memory > 0 else None, n_sms if n_sms > 0 else None)
        for chunk in export.chunks("TARGET_INFO_GPU", ("id",), ("totalMemory", "smCount"), "name")
        for id_, memory, n_sms, name in zip(
            *(chunk.integers[each].tolist() for each in ("id", "totalMemory", "smCount")),
            chunk.texts,
            strict=True,
        )
    }


def epoch_ns(export: Export, last_ns: int) -> int | None:
    """The offset from the export's times to nanoseconds since 1970.

    Times count from the start of the session, unless the report was exported with `--ts-normalize=true`: then
    they already count from 1970.
    """
    if "utcEpochNs" not in export.columns("TARGET_INFO_SESSION_START_TIME"):
        return None
    for chunk in export.chunks("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        for started_ns in chunk.integers["utcEpochNs"].tolist():
            return 0 if last_ns >= started_ns else started_ns
    return None


def read_report(path: Path) -> TraceTable:
    """The report at `path` as a table. Raises PeakwardError where it cannot be exported or read.

    The format is NVIDIA's own, so the `nsys` on PATH exports it into a temporary folder that is removed
    afterwards. A report opens in the version that wrote it and in later ones.
    """
    size_of_regular(path, "an Nsight Systems report")
    nsys = shutil.which("nsys")
    if nsys is None:
        raise PeakwardError(
            f"expected `nsys` on PATH to export the report, got none for {one_line(path)}: where Nsight "
            f"Systems is installed run `{_command_line(path)}`, then give the .sqlite file"
        )
    with TemporaryDirectory(prefix="peakward-nsys-") as folder:
        export = Path(folder) / "export.sqlite"
        _export(nsys, path, export)
        return read_as(export, path)


def _command_line(path: Path) -> str:
    output, report = shlex.quote(f"{path.stem}.sqlite"), shlex.quote(str(path))
    return one_line(f"nsys export --type sqlite --output {output} {report}")


def _export(nsys: str, path: Path, export: Path) -> None:
    command = [nsys, "export", "--type", "sqlite", "--output", str(export), str(path.absolute())]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as error:
        raise PeakwardError(
            f"expected an `nsys` that runs, got {one_line(error)}: export the report elsewhere "
            f"with `{_command_line(path)}`, then give the .sqlite file"
        ) from error
    if done.returncode != 0 or not export.is_file():
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()
        last = one_line(said[-1].strip()) if said else "nothing said"
        raise PeakwardError(
            f"expected a report that `nsys export` reads, got exit status {done.returncode} "
            f'("{last}") for {one_line(path)}: export it with the version of Nsight Systems that '
            "recorded it, or a later one"
        )
