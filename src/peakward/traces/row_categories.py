"""The category of each row of a table's work."""

import numpy as np

from peakward.traces.category_rules import RULES, WRAPPER, Category
from peakward.traces.cpp_names import parse
from peakward.traces.fused_category import fused_category
from peakward.traces.host_work import is_of_host
from peakward.traces.inductor import fused
from peakward.traces.operator_category import operator_category
from peakward.traces.table import Codes, GpuKind, Table

CATEGORIES = tuple(Category)


def row_categories(table: Table) -> Codes:
    """For each GPU row the position of its category in CATEGORIES.

    The category follows from the kernel's name, or without a GPU from the operator's. It is computed once for
    each name.
    """
    gpu, names = table.gpu, table.names
    if not len(gpu):
        return np.zeros(0, dtype=np.uint8)
    on_host = is_of_host(table)
    codes = np.zeros((len(GpuKind), len(names)), dtype=np.uint8)
    found = np.zeros(codes.shape, dtype=np.bool_)
    found[gpu.kind, gpu.name] = True
    for kind, name in np.argwhere(found).tolist():
        told = operator_category(names[name]) if on_host else category(names[name], GpuKind(kind))
        codes[kind, name] = CATEGORIES.index(told)
    of_row: Codes = codes[gpu.kind, gpu.name]
    return of_row


__all__ = ["Category", "category"]


def category(name: str, kind: GpuKind) -> Category:
    """The category of a kernel, copy or set. Ask once for each name of a trace."""
    if kind is not GpuKind.KERNEL:
        return Category.MEMORY
    if kernel := fused(name):
        return fused_category(kernel)
    told = _telling(name)
    return next((rule.category for rule in RULES if rule.pattern.search(told)), Category.OTHER)


def _telling(name: str) -> str:
    """The part of a name that tells the kernel's purpose."""
    function = parse(name)
    if function.arguments and WRAPPER.search(function.own):
        return f"{function.path}<{function.arguments}>"
    return function.path
