"""The GPU work of an export: kernels, copies, sets, and graphs traced as a whole.

CUPTI_ACTIVITY_KIND_SYNCHRONIZATION is not read. Its rows are waits of the host and of streams, not work, and
each lies within the runtime call that requested it, which has the same correlation id (cudaStreamSynchronize,
cudaEventQuery, cudaStreamWaitEvent: all 366 of the export in the tests).
"""

from collections.abc import Sequence

import numpy as np

from peakward.traces.readers.nsys.database import Export
from peakward.traces.readers.nsys.intervals import Columns, chosen, intervals, joined
from peakward.traces.readers.nsys.names import Names, positions_of_ids
from peakward.traces.table import NONE, TOO_LARGE, Direction, GpuKind, Ints

_OPTIONAL = ("streamId", "correlationId", "globalPid", "graphId", "graphNodeId")
_NO_DEVICE = (1 << 31) - 1
"""CUPTI's value for a graph that begins on the host."""

_COLUMNS = (
    *("start", "end", "deviceId", "streamId", "correlationId", "globalPid"),
    *("kind", "name", "bytes", "direction", "graph"),
)

_COPIES = (
    ("", Direction.UNKNOWN),
    ("HtoD", Direction.HOST_TO_DEVICE),
    ("DtoH", Direction.DEVICE_TO_HOST),
    ("HtoA", Direction.HOST_TO_DEVICE),
    ("AtoH", Direction.DEVICE_TO_HOST),
    ("AtoA", Direction.DEVICE_TO_DEVICE),
    ("AtoD", Direction.DEVICE_TO_DEVICE),
    ("DtoA", Direction.DEVICE_TO_DEVICE),
    ("DtoD", Direction.DEVICE_TO_DEVICE),
    ("HtoH", Direction.HOST_TO_HOST),
    ("PtoP", Direction.PEER),
    ("HtoD (unified memory)", Direction.HOST_TO_DEVICE),
    ("DtoH (unified memory)", Direction.DEVICE_TO_HOST),
    ("DtoD (unified memory)", Direction.DEVICE_TO_DEVICE),
)
"""Directions by copyKind, as in the export's own ENUM_CUDA_MEMCPY_OPER. An array (A) is on a device."""


def gpu_rows(export: Export, names: Names) -> tuple[Columns, tuple[str, ...]]:
    """The columns of GpuColumns, unsorted, with nsys's process ids; and sentences on left-out rows."""
    parts = tuple(part(export, names) for part in (_kernels, _copies, _sets, _graphs))
    limits = tuple(sentence for _, limits in parts for sentence in limits)
    return joined([columns for columns, _ in parts], _COLUMNS), limits


def _kernels(export: Export, names: Names) -> tuple[Columns, tuple[str, ...]]:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    there = [each for each in ("demangledName", "shortName") if each in export.columns(table)]
    needed, wanted = ((), there) if there else (("demangledName",), ())
    rows, limits = _on_devices(export, table, needed, wanted)
    ids = np.full(len(rows["start"]), NONE, np.int64)
    for each in (*needed, *wanted):
        ids = np.where(ids == NONE, rows[each], ids)
    rows["name"] = positions_of_ids(export, names, ids)
    return _complete(rows, GpuKind.KERNEL), limits


def _copies(export: Export, names: Names) -> tuple[Columns, tuple[str, ...]]:
    rows, limits = _on_devices(export, "CUPTI_ACTIVITY_KIND_MEMCPY", ("bytes", "copyKind"))
    kinds = rows["copyKind"]
    known = np.where((kinds >= 0) & (kinds < len(_COPIES)), kinds, 0)
    rows["name"] = names.positions(f"Memcpy {_COPIES[each][0]}".rstrip() for each in known.tolist())
    rows["direction"] = np.array([direction for _, direction in _COPIES], np.int64)[known]
    return _complete(rows, GpuKind.COPY), limits


def _sets(export: Export, names: Names) -> tuple[Columns, tuple[str, ...]]:
    rows, limits = _on_devices(export, "CUPTI_ACTIVITY_KIND_MEMSET", ("bytes",))
    rows["name"] = names.positions(["Memset"] * len(rows["start"]))
    return _complete(rows, GpuKind.SET), limits


def _graphs(export: Export, names: Names) -> tuple[Columns, tuple[str, ...]]:
    """Launches of graphs traced as a whole, one row each, so that the GPU counts as busy."""
    rows, limits = _on_devices(export, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    rows["name"] = names.positions(
        f"CUDA graph {each}" if each > 0 else "CUDA graph" for each in rows["graphId"].tolist()
    )
    n, hidden_ns = len(rows["start"]), int((rows["end"] - rows["start"]).sum())
    hidden = (
        f"launches of CUDA graphs that hide their kernels, one row each: {n}, {hidden_ns} ns in all; "
        "`nsys profile --cuda-graph-trace=node` records what is inside",
    )
    return _complete(rows, GpuKind.KERNEL), (*limits, *(hidden if n else ()))


def _on_devices(
    export: Export, table: str, required: Sequence[str] = (), optional: Sequence[str] = ()
) -> tuple[Columns, tuple[str, ...]]:
    rows, limits = intervals(export, table, ("deviceId", *required), (*_OPTIONAL, *optional))
    kept = (rows["deviceId"] >= 0) & (rows["deviceId"] < _NO_DEVICE)
    if n_elsewhere := len(kept) - int(kept.sum()):
        limits += (f"rows of {table} left out for being on no device: {n_elsewhere}",)
    return chosen(rows, kept), limits


def _complete(rows: Columns, kind: GpuKind) -> Columns:
    n = len(rows["start"])
    rows["kind"] = np.full(n, kind, np.int64)
    rows["graph"] = _graph(rows["graphId"], rows["graphNodeId"])
    rows["correlationId"] = np.where(rows["correlationId"] > 0, rows["correlationId"], NONE)
    n_bytes = rows.setdefault("bytes", np.full(n, NONE, np.int64))
    rows["bytes"] = np.where((n_bytes >= 0) & (n_bytes < TOO_LARGE), n_bytes, NONE)
    rows.setdefault("direction", np.zeros(n, np.int64))
    return rows


def _graph(graph_id: Ints, node_id: Ints) -> Ints:
    """The graph's id: the upper half of a node's id, where the export names the node alone."""
    from_node = np.where(node_id >> 32 > 0, node_id >> 32, NONE)
    return np.where(graph_id > 0, graph_id, from_node)
