"""The NVTX ranges of an export, with the operators that PyTorch's `emit_nvtx` writes among them."""

import re
from typing import NamedTuple

import numpy as np

from peakward.traces.readers.nsys.database import Chunk, Export
from peakward.traces.readers.nsys.intervals import Columns, chosen, joined, left_out, sound
from peakward.traces.readers.nsys.names import UNNAMED, Names
from peakward.traces.table import NONE, HostKind, Ints

_TABLE = "NVTX_EVENTS"
_COLUMNS = ("start", "end", "globalTid", "kind", "name", "sequence", "shape")
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
    rows = joined(parts, _COLUMNS)
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
