"""Work by Peakward's own ranges inside a model's pass, as records."""

import re

import numpy as np

from peakward.records.profile import RangeWork
from peakward.traces.category_rules import Category
from peakward.traces.kernels import group
from peakward.traces.parts import PartDirection, parts
from peakward.traces.table import NONE, Codes, HostKind, Indices, Table

_FAMILIES = (
    re.compile(r"peakward::block \d+"),
    re.compile(r"peakward::attention"),
    re.compile(r"peakward::attention\.\w+"),
)
"""Families of ranges. Each range lies in one of the family before it, and in none of its own family."""
_CATEGORIES = tuple(Category)
_NUMBERS = re.compile(r"\d+")


def range_work(table: Table, launches: Indices, categories: Codes) -> tuple[RangeWork, ...]:
    """The work of each range, by direction and category."""
    found = [
        each for family in _FAMILIES for each in _of_family(table, launches, categories, family)
    ]
    return tuple(sorted(found, key=_order))


def _of_family(
    table: Table, launches: Indices, categories: Codes, family: re.Pattern[str]
) -> list[RangeWork]:
    host = table.host
    opened = np.unique(host.name[host.kind == HostKind.RANGE]).tolist()
    names = {table.names[name] for name in opened if family.fullmatch(table.names[name])}
    if not names:
        return []
    inside = parts(table, launches, names)
    rows = inside.name != NONE
    groups = group(
        table.gpu.duration_ns[rows], [inside.name[rows], inside.direction[rows], categories[rows]]
    )
    columns = zip(groups.keys.tolist(), groups.instances, groups.total_ns, strict=True)
    return [
        RangeWork(
            name=table.names[name],
            direction="backward" if direction == PartDirection.BACKWARD else "forward",
            category=_CATEGORIES[category].value,
            n=int(n),
            total_ns=int(total_ns),
        )
        for (name, direction, category), n, total_ns in columns
    ]


def _order(one: RangeWork) -> tuple[str, int, str, int]:
    """Sort blocks by their number, forward first, the longest first."""
    number = _NUMBERS.search(one.name)
    return (
        _NUMBERS.sub("", one.name),
        int(number.group()) if number else 0,
        "0" if one.direction == "forward" else "1",
        -one.total_ns,
    )
