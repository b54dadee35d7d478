"""The NVTX ranges of an export."""

import numpy as np

from peakward.traces.readers.nsys.database import Chunk, Export
from peakward.traces.readers.nsys.intervals import Columns, chosen, joined, left_out, sound
from peakward.traces.readers.nsys.names import UNNAMED, Names
from peakward.traces.readers.nsys.operators import label
from peakward.traces.table import NONE, Ints

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
