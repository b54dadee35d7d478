"""The rows of an Nsight Systems export: GPU work, host activity, NVTX ranges, operators.

CUPTI_ACTIVITY_KIND_SYNCHRONIZATION is not read. Its rows are waits of the host and of streams, not work, and
each lies within the runtime call that requested it, which has the same correlation id (cudaStreamSynchronize,
cudaEventQuery, cudaStreamWaitEvent: all 366 of the export in the tests).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.traces.readers.nsys_database import Chunk, Export
from peakward.traces.table import NONE, TOO_LARGE, Direction, GpuKind, HostKind, Ints

_OPTIONAL = ("streamId", "correlationId", "globalPid", "graphId", "graphNodeId")
_NO_DEVICE = (1 << 31) - 1
"""CUPTI's value for a graph that begins on the host."""
_GPU_COLUMNS = (
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
Columns = dict[str, Ints]


class Names:
    """Gives every name its position, in the order of first use."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def position(self, name: str) -> int:
        """The position of this name; a new name is added at the end."""
        return self._positions.setdefault(name, len(self._positions))

    def positions(self, names: Iterable[str]) -> Ints:
        """The position of each name."""
        return np.array([self.position(each) for each in names], np.int64)

    def all(self) -> tuple[str, ...]:
        """All names, by position."""
        return tuple(self._positions)


def gpu_rows(export: Export, names: Names) -> tuple[Columns, tuple[str, ...]]:
    """The columns of GpuColumns, unsorted, with nsys's process ids; and sentences on left-out rows."""
    parts = tuple(part(export, names) for part in (_kernels, _copies, _sets, _graphs))
    limits = tuple(sentence for _, limits in parts for sentence in limits)
    return joined([columns for columns, _ in parts], _GPU_COLUMNS), limits


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


_HOST_COLUMNS = (
    *("start", "end", "globalTid", "correlationId"),
    *("kind", "name", "sequence", "shape"),
)
_VERSION = re.compile(r"_v\d+$")


def host_rows(
    export: Export, names: Names, shapes: Names, last_ns: int
) -> tuple[Columns, tuple[str, ...]]:
    """The columns of HostColumns, unsorted, with nsys's thread ids; and sentences on left-out rows.

    `last_ns` is the end of the GPUs' last work.
    """
    calls, call_limits = _named_by_id(export, names, "CUPTI_ACTIVITY_KIND_RUNTIME", HostKind.CALL)
    overheads, more_limits = _named_by_id(export, names, "PROFILER_OVERHEAD", HostKind.OVERHEAD)
    for each in (calls, overheads):
        last_ns = int(each["end"].max(initial=last_ns))
    named, range_limits = ranges(export, names, shapes, last_ns)
    named["correlationId"] = np.full(len(named["start"]), NONE, np.int64)
    return (
        joined([calls, named, overheads], _HOST_COLUMNS),
        (*call_limits, *more_limits, *range_limits),
    )


def _named_by_id(
    export: Export, names: Names, table: str, kind: HostKind
) -> tuple[Columns, tuple[str, ...]]:
    rows, limits = intervals(export, table, ("globalTid", "nameId"), ("correlationId",))
    n = len(rows["start"])
    rows["kind"] = np.full(n, kind, np.int64)
    rows["name"] = positions_of_ids(export, names, rows["nameId"], _without_version)
    rows["correlationId"] = np.where(rows["correlationId"] > 0, rows["correlationId"], NONE)
    rows["sequence"] = rows["shape"] = np.full(n, NONE, np.int64)
    return rows, limits


def _without_version(name: str) -> str:
    """`cudaLaunchKernel` of `cudaLaunchKernel_v7000`."""
    return _VERSION.sub("", name)


_TABLE = "NVTX_EVENTS"
_RANGE_COLUMNS = ("start", "end", "globalTid", "kind", "name", "sequence", "shape")
_MARK, _PUSH_POP, _START_END = 34, 59, 60
"""Values of eventType, as in the export's own ENUM_NSYS_EVENT_TYPE."""


def ranges(
    export: Export, names: Names, shapes: Names, last_ns: int
) -> tuple[Columns, tuple[str, ...]]:
    """Columns of HostColumns, unsorted, with nsys's thread ids; and sentences on left-out rows.

    A range that was open when the capture ended ends at `last_ns`, or at the last start or end of a range if
    that is later. A start/end range belongs to the thread that started it, wherever it ended.
    """
    parts, n_mistyped, n_marks = [], 0, 0
    for chunk in export.chunks(
        _TABLE, ("start", "eventType", "globalTid"), ("end", "textId"), text="text"
    ):
        n_mistyped += chunk.n_left_out
        n_marks += int((chunk.integers["eventType"] == _MARK).sum())
        parts.append(_named(export, chunk, names, shapes))
    rows = joined(parts, _RANGE_COLUMNS)
    still_open = rows["end"] == NONE
    last_ns = int(max(rows["start"].max(initial=last_ns), rows["end"].max(initial=last_ns)))
    rows["end"] = np.where(still_open, last_ns, rows["end"])
    kept = sound(rows["start"], rows["end"])
    limits = left_out(_TABLE, n_mistyped, len(kept) - int(kept.sum()))
    if n_open := int(still_open.sum()):
        limits += (f"NVTX ranges without an end, which end with the capture: {n_open}",)
    if n_marks:
        limits += (f"NVTX marks left out, as they take no time: {n_marks}",)
    return chosen(rows, kept), limits


def _named(export: Export, chunk: Chunk, names: Names, shapes: Names) -> Columns:
    is_range = np.isin(chunk.integers["eventType"], (_PUSH_POP, _START_END))
    columns = chosen(chunk.integers, is_range)
    rows = np.flatnonzero(is_range).tolist()
    registered = _registered(export, columns["textId"])
    labels = [
        label(text if (text := chunk.texts[row]) is not None else registered.get(id_, UNNAMED))
        for row, id_ in zip(rows, columns["textId"].tolist(), strict=True)
    ]
    columns["kind"] = np.array([each.kind for each in labels], np.int64)
    columns["name"] = names.positions(each.name for each in labels)
    columns["sequence"] = np.array([each.sequence for each in labels], np.int64)
    columns["shape"] = np.array(
        [NONE if each.shape is None else shapes.position(each.shape) for each in labels], np.int64
    )
    return columns


def _registered(export: Export, ids: Ints) -> dict[int, str]:
    return export.strings(np.unique(ids[ids != NONE]).tolist())


_BEGIN = re.compile(r", (?:seq|op_id) = ")
_INTEGER = r"(?:0|-?[1-9]\d{0,17})"
_DIMENSIONS = rf"\[(?:{_INTEGER}(?:, {_INTEGER})*)?\]"
_FIELDS = re.compile(
    r"(?:, seq = (\d{1,18}))?(?:, op_id = \d+)?"
    rf"(?:, sizes = (\[(?:{_DIMENSIONS}(?:, {_DIMENSIONS})*)?\]))?"
    r"(?:, input_op_ids = \[[\d(), ]*\])?"
)
_DISPATCHED = re.compile(r"\w+::[\w.]+")


class Label(NamedTuple):
    """A range's name and the other fields in it."""

    name: str
    kind: HostKind
    """OP or RANGE."""
    sequence: int
    """NONE where there was none."""
    shape: str | None
    """The shape in the form of `Table.shapes`."""


def label(text: str) -> Label:
    """Take apart `aten::addmm, seq = 12, op_id = 3, sizes = [[2, 4], [4, 8]]`.

    The form is that of `getNvtxStr` in torch/csrc/profiler/util.cpp: `seq` stands only where
    autograd recorded the operator, `op_id` always, also in the range of a `record_function`. So a
    range is an operator where it has a `seq`, or an `op_id` and a name of the dispatcher's, as
    `c10d::alltoall_base_`; the rest (`FSDP::pre_forward (blocks.0)`, `nccl:all_to_all`) and every
    range that torch did not write stay ranges.
    """
    begin = _BEGIN.search(text)
    fields = _FIELDS.fullmatch(text, begin.start()) if begin else None
    if begin is None or fields is None:
        return Label(text, HostKind.RANGE, NONE, None)
    name, (sequence, sizes) = text[: begin.start()], fields.groups()
    is_operator = sequence is not None or _DISPATCHED.fullmatch(name) is not None
    return Label(
        name,
        HostKind.OP if is_operator else HostKind.RANGE,
        int(sequence) if sequence is not None and is_operator else NONE,
        f"[{sizes},null,null]" if sizes is not None and is_operator else None,
    )


_FURTHEST_NS = 1 << 62


def intervals(
    export: Export, table: str, required: Sequence[str], optional: Sequence[str]
) -> tuple[Columns, tuple[str, ...]]:
    """A table's columns, including `start` and `end`, and sentences on left-out rows."""
    chunks = list(export.chunks(table, ("start", "end", *required), optional))
    columns = joined([each.integers for each in chunks], ("start", "end", *required, *optional))
    kept = sound(columns["start"], columns["end"])
    n_impossible = len(kept) - int(kept.sum())
    n_mistyped = sum(each.n_left_out for each in chunks)
    return chosen(columns, kept), left_out(table, n_mistyped, n_impossible)


def sound(start_ns: Ints, end_ns: Ints) -> NDArray[np.bool_]:
    """Mask of possible intervals: the end is not before the start, and not 0, CUPTI's value for an unknown
    time."""
    near = np.ones(len(start_ns), np.bool_)
    for each in (start_ns, end_ns):
        near &= (each > -_FURTHEST_NS) & (each < _FURTHEST_NS)
    duration_ns = np.where(near, end_ns, -1) - np.where(near, start_ns, 0)
    kept: NDArray[np.bool_] = (duration_ns >= 0) & (duration_ns < TOO_LARGE) & (end_ns != 0)
    return kept


def joined(parts: Sequence[Mapping[str, Ints]], names: Sequence[str]) -> Columns:
    """The columns of several pieces, one after the other."""
    empty = np.empty(0, np.int64)
    return {name: np.concatenate([empty, *(part[name] for part in parts)]) for name in names}


def chosen(columns: Mapping[str, Ints], rows: NDArray[np.bool_]) -> Columns:
    """These rows of every column."""
    return {name: column[rows] for name, column in columns.items()}


def left_out(table: str, n_mistyped: int, n_impossible: int) -> tuple[str, ...]:
    """Sentences for `Table.limits` on rows that cannot be read."""
    causes = (
        (n_mistyped, "text, a fraction or nothing where a whole number must be"),
        (n_impossible, "an end before the start, no time, or one out of range"),
    )
    return tuple(f"rows of {table} left out for {cause}: {n}" for n, cause in causes if n)


UNNAMED = "(unnamed)"
"""Replaces a missing name, and one that the file does not hold."""


def positions_of_ids(
    export: Export, names: Names, ids: Ints, shown: Callable[[str], str] = str
) -> Ints:
    """Positions of the names behind ids in StringIds, after `shown` has formatted each."""
    unique, places = np.unique(ids, return_inverse=True)
    values = export.strings(unique.tolist())
    found = names.positions(shown(values.get(each, UNNAMED)) for each in unique.tolist())
    return found[places]
