"""The category of each row of a table's work."""

import numpy as np

from peakward.traces.categories import category
from peakward.traces.category_rules import Category
from peakward.traces.host_work import is_of_host
from peakward.traces.operator_category import operator_category
from peakward.traces.table import Codes, GpuKind, Table

CATEGORIES = tuple(Category)


def row_categories(table: Table) -> Codes:
    """For each GPU row the position of its category in CATEGORIES.

    By the name of the kernel, or where there is no GPU that of the operator; once for each.
    """
    gpu, names = table.gpu, table.names
    if not len(gpu):
        return np.zeros(0, dtype=np.uint8)
    kinds = np.stack([gpu.kind.astype(np.int64), gpu.name.astype(np.int64)])
    different, which = np.unique(kinds, axis=1, return_inverse=True)
    found = (
        operator_category(names[name])
        if is_of_host(table)
        else category(names[name], GpuKind(kind))
        for kind, name in different.T
    )
    codes = np.array([CATEGORIES.index(each) for each in found], dtype=np.uint8)
    of_row: Codes = codes[which.reshape(-1)]
    return of_row
