"""Slow and plain readers of real traces, for the tests of what is computed from a table."""

import gzip
import json
import re
import sqlite3
from decimal import Decimal
from functools import cache

import pytest

from peakward.traces.table import NONE, GpuKind, HostKind

from .real import FOLDER
from .rows import Rows

_GPU_KINDS = {
    "kernel": GpuKind.KERNEL,
    "gpu_memcpy": GpuKind.COPY,
    "gpu_memset": GpuKind.SET,
}
_HOST_KINDS = {
    "cpu_op": HostKind.OP,
    "cuda_runtime": HostKind.CALL,
    "cuda_driver": HostKind.CALL,
    "user_annotation": HostKind.RANGE,
    "python_function": HostKind.PYTHON,
    "overhead": HostKind.OVERHEAD,
}


def real(file):
    """A file of shared/traces: its table and its launches; skips the test where it is absent."""
    if not (FOLDER / file).exists():
        pytest.skip(f"no {file} in {FOLDER}: PEAKWARD_TRACES names the folder of real traces")
    return read(FOLDER / file)


@cache
def read(path):
    """A Kineto or an Nsight Systems file: the table and its launches."""
    rows = Rows()
    if path.suffix == ".sqlite":
        _read_nsys(path, rows)
    else:
        _read_torch(path, rows)
    return rows.table()


def _ns(event):
    start = int(Decimal(event["ts"]) * 1000)
    return start, start + int(Decimal(event["dur"]) * 1000)


def _read_torch(path, rows):
    with gzip.open(path, "rt") as file:
        events = json.load(file, parse_float=str, parse_int=str)["traceEvents"]
    events = [event for event in events if event.get("ph") == "X"]
    pid = next(event["pid"] for event in events if event.get("cat") == "cuda_runtime")
    for event in events:
        cat, args = event.get("cat"), event.get("args", {})
        if cat in _GPU_KINDS:
            rows.gpu(
                event["name"],
                *_ns(event),
                pid,
                kind=_GPU_KINDS[cat],
                device=int(args["device"]),
                stream=int(args["stream"]),
                correlation=int(args["correlation"]),
                n_bytes=int(args.get("bytes", NONE)),
            )
        elif cat in _HOST_KINDS:
            rows.host(
                _HOST_KINDS[cat],
                event["name"],
                *_ns(event),
                f"{event['pid']}/{event['tid']}",
                correlation=int(args.get("correlation", NONE)),
                sequence=int(args.get("Sequence number", NONE)),
                backward=int(args.get("Fwd thread id", 0)) > 0,
                shape=_shape(args),
            )


def _shape(args):
    if "Input Dims" not in args:
        return None
    numbers = json.loads(json.dumps(args["Input Dims"]), parse_int=int)
    dims = json.loads(re.sub(r'"(-?\d+)"', r"\1", json.dumps(numbers)))
    return json.dumps([dims, args.get("Input type"), args.get("Concrete Inputs")])


def _read_nsys(path, rows):
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    strings = dict(db.execute("select id, value from StringIds"))
    for start, end, tid, text, text_id in db.execute(
        "select start, end, globalTid, text, textId from NVTX_EVENTS where end is not null"
    ):
        name, _, rest = (text or strings[text_id]).partition(", ")
        sequence = re.search(r"seq = (\d+)", rest)
        kind = HostKind.OP if "op_id" in rest or sequence else HostKind.RANGE
        rows.host(
            kind, name, start, end, _thread(tid), sequence=int(sequence[1]) if sequence else NONE
        )
    for start, end, tid, correlation, name in db.execute(
        "select start, end, globalTid, correlationId, nameId from CUPTI_ACTIVITY_KIND_RUNTIME"
    ):
        rows.host(HostKind.CALL, strings[name], start, end, _thread(tid), correlation=correlation)
    for start, end, pid, correlation, device, stream, name in db.execute(
        "select start, end, globalPid, correlationId, deviceId, streamId, demangledName "
        "from CUPTI_ACTIVITY_KIND_KERNEL"
    ):
        rows.gpu(
            strings[name], start, end, str(pid), correlation=correlation, device=device,
            stream=stream,
        )  # fmt: skip


def _thread(tid):
    return f"{tid & ~0xFFFFFF}/{tid}"
