"""Selections of a trace: part of its GPU work as a table, and the rows of each device."""

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from peakward.traces.table import GpuColumns, Table


def rows_of_each(
    column: NDArray[np.integer], rows: NDArray[np.intp] | None = None
) -> dict[int, NDArray[np.intp]]:
    """For each value of the column, in the order of values, its positions in ascending order.

    One sort finds them all: a search for each of 1,000 devices went over 200,000 rows each time.

    Args:
        rows: ascending positions to look at; None for all.
    """
    rows = np.arange(len(column)) if rows is None else rows
    rows = rows[np.argsort(column[rows], kind="stable")]
    values, first = np.unique(column[rows], return_index=True)
    return dict(zip(values.tolist(), np.split(rows, first[1:]), strict=False))


def restricted(table: Table, rows: NDArray[np.bool_]) -> Table:
    """The table with only these GPU rows. The host's rows stay, because launches and ranges refer to them."""
    columns = {field.name: getattr(table.gpu, field.name)[rows] for field in fields(GpuColumns)}
    return replace(table, gpu=GpuColumns(**columns))
