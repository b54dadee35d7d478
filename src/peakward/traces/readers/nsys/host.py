"""The host's activity in an export: runtime and driver calls, ranges, the profiler's own time."""

import re

import numpy as np

from peakward.traces.readers.nsys.database import Export
from peakward.traces.readers.nsys.intervals import Columns, intervals, joined
from peakward.traces.readers.nsys.names import Names, positions_of_ids
from peakward.traces.readers.nsys.nvtx import ranges
from peakward.traces.table import NONE, HostKind

_COLUMNS = (
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
        joined([calls, named, overheads], _COLUMNS),
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
