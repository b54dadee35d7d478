"""Work by Peakward's own ranges inside a model's pass, including the work of the backward pass.

A range of the forward pass, for example around a layer, is closed before its gradients are computed.
Autograd's sequence numbers lead back to it: each node of a backward pass carries the number of the forward
operator that made it. Among forward operators with one number that is the last to start, because earlier ones
that made no node carry the number too.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from peakward.records.profile import RangeWork
from peakward.traces.category_rules import Category
from peakward.traces.grouping import group
from peakward.traces.intervals import nest, rows_of
from peakward.traces.ranges import (
    Launches,
    backward_rows,
    innermost_at,
    launch_sites,
    waiting_threads,
)
from peakward.traces.table import NONE, Codes, HostKind, Indices, TraceTable

_FAMILIES = (
    re.compile(r"peakward::block \d+"),
    re.compile(r"peakward::attention"),
    re.compile(r"peakward::attention\.\w+"),
)
"""Families of ranges. Each range lies in one of the family before it, and in none of its own family."""
_CATEGORIES = tuple(Category)
_NUMBERS = re.compile(r"\d+")


def range_work(table: TraceTable, launches: Indices, categories: Codes) -> tuple[RangeWork, ...]:
    """The work of each range, by direction and category."""
    found = [
        each for family in _FAMILIES for each in _of_family(table, launches, categories, family)
    ]
    return tuple(sorted(found, key=_order))


def _of_family(
    table: TraceTable, launches: Indices, categories: Codes, family: re.Pattern[str]
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


class PartDirection(IntEnum):
    """The pass that launched a piece of work. Recomputation belongs to the backward pass."""

    FORWARD = 0
    BACKWARD = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A range and a direction for each GPU row."""

    name: Indices
    """The position in `Table.names` of the range's name; NONE for work outside all these ranges."""
    direction: Codes
    """A PartDirection by autograd's nodes; FORWARD in a trace without them."""


def parts(table: TraceTable, launches: Indices, names: Collection[str]) -> Parts:
    """For each GPU row its range among those of these names.

    That is the innermost one open at its launch. Where none is open and it was launched in a node of a
    backward pass, it is the innermost one that was open when the node's forward operator started. A range
    contains work at any depth, unless another of `names` inside it contains that work.
    """
    wanted = np.array([name in names for name in table.names], dtype=bool)
    rows = rows_of(table.host, (HostKind.RANGE,))
    rows = rows[wanted[table.host.name[rows]]]
    sites = launch_sites(table, launches)
    node = nest(table.host, backward_rows(table)).innermost(sites.thread, sites.at_ns)
    forward = _forward_operators(table, _numbered(table, sites))
    of_node = nest(table.host, rows).innermost(
        np.append(table.host.thread, NONE)[forward], np.append(table.host.start_ns, NONE)[forward]
    )
    at_launch = innermost_at(table, sites, rows)
    row = np.where(at_launch == NONE, of_node, at_launch)
    return Parts(
        name=np.append(table.host.name, NONE)[row].astype(np.int32),
        direction=(node != NONE).astype(np.uint8),
    )


def _numbered(table: TraceTable, sites: Launches) -> Indices:
    """For each GPU row the innermost numbered backward node around its launch, or NONE."""
    nodes = backward_rows(table)
    nodes = nodes[(table.host.sequence[nodes] >= 0) & (table.host.kind[nodes] == HostKind.OP)]
    return nest(table.host, nodes).innermost(sites.thread, sites.at_ns)


def _forward_operators(table: TraceTable, nodes: Indices) -> Indices:
    """For each of these nodes the operator whose gradient it computes; NONE for NONE, or where the trace
    lacks it. A node's numbers belong to the thread that waits for it, else to its own."""
    host = table.host
    ops = rows_of(host, (HostKind.OP,))
    ops = np.setdiff1d(ops[host.sequence[ops] >= 0], backward_rows(table), assume_unique=True)
    if not len(ops):
        return np.full(len(nodes), NONE, dtype=np.int32)
    own = np.arange(len(table.threads))
    waiting = waiting_threads(table)
    # Numbers are counted anew from 0, because a number and its thread together must fit 64 bits.
    different, dense = np.unique(host.sequence[ops], return_inverse=True)
    numbers = host.thread[ops].astype(np.int64) * len(different) + dense
    # Sorted by number, those of one number in the order of their starts.
    order = np.lexsort((ops, numbers))
    ops, numbers = ops[order], numbers[order]
    thread = np.where(waiting == NONE, own, waiting)[np.append(host.thread, 0)[nodes]]
    sequence = np.append(host.sequence, NONE)[nodes]
    at = np.minimum(np.searchsorted(different, sequence), len(different) - 1)
    asked = thread * len(different) + at
    place = np.maximum(np.searchsorted(numbers, asked, side="right") - 1, 0)
    found = (nodes != NONE) & (different[at] == sequence) & (numbers[place] == asked)
    return np.where(found, ops[place], NONE).astype(np.int32)
