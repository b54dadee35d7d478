"""The real traces that tests hold exact figures of, as tables, and which of their rows communicate.

They lie beside the project; `PEAKWARD_TRACES` names another folder. The loaders take only what these
files need, so that the analyses are tested apart from the readers.
"""

import gzip
import json
import os
import sqlite3
from contextlib import closing
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from peakward.traces.table import NONE, Direction, GpuKind, HostKind, TraceTable

from .handmade import Gpu, Host, table

FOLDER = Path(os.environ.get("PEAKWARD_TRACES", Path(__file__).parents[4] / "shared" / "traces"))

A100 = "a100_ddp_nccl_ns.json.gz"
RANK_0 = "two_ranks_us_rank0.json.gz"
RANK_1 = "two_ranks_us_rank1.json.gz"
H100_BERT = "h100_bert_small.json.gz"
MI300_BERT = "mi300_bert_small.json.gz"
H100_NSYS = "h100_2gpu_flash_nccl.sqlite"

GPU_KINDS = {"kernel": GpuKind.KERNEL, "gpu_memcpy": GpuKind.COPY, "gpu_memset": GpuKind.SET}
HOST_KINDS = {
    "cpu_op": HostKind.OP,
    "cuda_runtime": HostKind.CALL,
    "cuda_driver": HostKind.CALL,
    "user_annotation": HostKind.RANGE,
    "python_function": HostKind.PYTHON,
    "overhead": HostKind.OVERHEAD,
}
DIRECTIONS = {
    "HtoD": Direction.HOST_TO_DEVICE,
    "DtoH": Direction.DEVICE_TO_HOST,
    "DtoD": Direction.DEVICE_TO_DEVICE,
    "PtoP": Direction.PEER,
}


def real(name: str) -> TraceTable:
    """The trace of that name; skips the test where it is not there."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no {name} in {FOLDER}: the real traces are not part of the project")
    return _nsys(path) if path.suffix == ".sqlite" else _torch(path)


def communication(of: TraceTable) -> np.ndarray:
    """Whether each GPU row is a kernel of NCCL or RCCL."""
    by_name = np.array(["nccl" in name.lower() for name in of.names], dtype=bool)
    return by_name[of.gpu.name] & (of.gpu.kind == GpuKind.KERNEL)


@lru_cache(maxsize=2)
def _torch(path: Path) -> TraceTable:
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    threads: dict[tuple[str, str], int] = {}
    gpu, host = [], []
    for event in events:
        if event["ph"] != "X":
            continue
        args = event.get("args", {})
        start = int(Decimal(event["ts"]) * 1000)
        span = (start, start + int(Decimal(event["dur"]) * 1000), event["name"])
        correlation = args.get("correlation", NONE)
        if event["cat"] in GPU_KINDS:
            kind = GPU_KINDS[event["cat"]]
            direction = next(
                (to for how, to in DIRECTIONS.items() if how in event["name"]), Direction.UNKNOWN
            )
            gpu.append(
                Gpu(
                    *span,
                    correlation,
                    args["stream"],
                    args["device"],
                    kind=kind,
                    n_bytes=int(args.get("bytes", NONE)),
                    direction=direction if kind == GpuKind.COPY else Direction.UNKNOWN,
                )
            )
        elif event["cat"] in HOST_KINDS:
            kind = HOST_KINDS[event["cat"]]
            thread = threads.setdefault((str(event["pid"]), str(event["tid"])), len(threads))
            correlation = correlation if kind == HostKind.CALL else NONE
            host.append(Host(*span, correlation, kind, thread))
    return table(gpu, host, threads=[0] * len(threads), source=path.name)


NSYS_GPU = (
    ("KERNEL", GpuKind.KERNEL, "s.value", "-1", "0"),
    ("MEMCPY", GpuKind.COPY, "'copy'", "k.bytes", "k.copyKind"),
    ("MEMSET", GpuKind.SET, "'set'", "k.bytes", "0"),
)
NSYS_DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


@lru_cache(maxsize=1)
def _nsys(path: Path) -> TraceTable:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
        calls = db.execute(
            "select r.start, r.end, s.value, r.correlationId, r.globalTid "
            "from CUPTI_ACTIVITY_KIND_RUNTIME r join StringIds s on s.id = r.nameId"
        ).fetchall()
        work = {
            kind: db.execute(
                f"select k.start, k.end, {name}, k.correlationId, k.streamId, k.deviceId, k.globalPid, "
                f"{n_bytes}, {direction} from CUPTI_ACTIVITY_KIND_{source} k"
                + (" join StringIds s on s.id = k.demangledName" if kind == GpuKind.KERNEL else "")
            ).fetchall()
            for source, kind, name, n_bytes, direction in NSYS_GPU
        }
    processes: dict[int, int] = {}
    threads: dict[int, int] = {}
    host = []
    for start, end, name, correlation, tid in calls:
        processes.setdefault(tid & ~0xFFFFFF, len(processes))
        thread = threads.setdefault(tid, len(threads))
        host.append(Host(start, end, name, correlation, HostKind.CALL, thread))
    gpu = [
        Gpu(
            *row[:6],
            process=processes.setdefault(row[6], len(processes)),
            kind=kind,
            n_bytes=row[7],
            direction=DIRECTIONS.get(NSYS_DIRECTIONS.get(row[8], ""), Direction.UNKNOWN),
        )
        for kind, rows in work.items()
        for row in rows
    ]
    owners = [processes[tid & ~0xFFFFFF] for tid in threads]
    return table(gpu, host, threads=owners, source=path.name)
