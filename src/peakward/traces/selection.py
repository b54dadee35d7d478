"""A part of a trace's GPU work, as a table of its own."""

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from peakward.traces.table import GpuColumns, Table


def restricted(table: Table, rows: NDArray[np.bool_]) -> Table:
    """The table with only these GPU rows; the host's stay, for launches and ranges are theirs."""
    columns = {field.name: getattr(table.gpu, field.name)[rows] for field in fields(GpuColumns)}
    return replace(table, gpu=GpuColumns(**columns))
