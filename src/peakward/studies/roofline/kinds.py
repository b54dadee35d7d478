"""The kinds of operators that have a place each: products by their role, the rest by category.

A step's operators come from two sides: stated in closed form, with modules, and measured in a trace,
without. Products meet by their shapes; all else by phase and category.
"""

from collections.abc import Mapping
from typing import NamedTuple

from peakward.prediction.operators.category import category
from peakward.records.op_graph import Operator, OpGraph
from peakward.records.profile import Group, OperatorRate
from peakward.traces.row_categories import shaping

ATTENTION_PRODUCTS = "attention products"
ELEMENTWISE = "elementwise and copies"
OPTIMISER = "optimiser"
ROLES = ("qkv", ATTENTION_PRODUCTS, "out", "up", "down", "head")
"""Of products, in the order of a forward pass."""
_COARSE = ("elementwise", "copy", "reduction", "memory")
"""Between these the names of operators and of kernels draw the line differently: a fill, a cast and a
sum count together."""
_INSIDE = {"sort": "embedding"}
"""Kernels by the operator around them: a dense model sorts nothing but the indices of its embedding's
backward pass."""
_WITHOUT_PLACE = ("framework", "other")
"""Of a trace: views and autograd's nodes on a host, and what no rule names."""
_SIDES = {"mm": 0, "bmm": 0, "addmm": 1, "_scaled_mm": 0}
"""Products, and where among their tensors the two matrices begin."""


class Product(NamedTuple):
    """A product by what a trace and a graph both say of it."""

    name: str
    a: tuple[int, ...]
    b: tuple[int, ...]


def product(operator: Operator) -> Product | None:
    """Of an operator of a graph; None where it is none."""
    name = operator.name.removeprefix("aten.")
    if name not in _SIDES:
        return None
    a, b = operator.inputs[_SIDES[name] :][:2]
    return Product(name, a.shape, b.shape)


def traced_product(rate: OperatorRate) -> Product | None:
    """Of operators of a trace; None where they are none, or their shapes were not recorded."""
    name = rate.name.removeprefix("aten::")
    if name not in _SIDES or not rate.dims:
        return None
    shapes = [tuple(int(side) for side in each.split("×")) for each in rate.dims.split(", ")]
    sides = shapes[_SIDES[name] :][:2]
    return Product(name, *sides) if len(sides) == 2 else None


def roles(graph: OpGraph) -> dict[Product, str]:
    """Of each product of the graph, by the layer that it is for, forward and backward alike.

    Layers of one shape have one name, as "out + down": a trace cannot tell them apart.
    """
    found: dict[Product, set[str]] = {}
    for each in graph.operators:
        if key := product(each):
            found.setdefault(key, set()).add(_role(each))
    groups: list[set[str]] = []
    for names in found.values():
        shared = [each for each in groups if each & names]
        groups = [each for each in groups if each not in shared] + [names.union(*shared)]
    title = {name: " + ".join(sorted(each, key=_rank)) for each in groups for name in each}
    return {key: title[next(iter(names))] for key, names in found.items()}


def kind(operator: Operator, role_of: Mapping[Product, str]) -> str:
    """Of an operator of the graph that the roles are of."""
    if key := product(operator):
        return role_of[key]
    if operator.phase == "optimizer":
        return OPTIMISER
    fused = tuple(each.removeprefix("aten.") for each in operator.fused)
    shaped = shaping(fused)
    return _coarse(category(operator.name) if shaped is None else str(shaped))


def traced_kind(group: Group) -> str | None:
    """Of a category of a trace in one phase; None of products, which go by shape, and of what has no
    place."""
    named = group.category
    if named is None or named == "matmul" or named in _WITHOUT_PLACE:
        return None
    return OPTIMISER if group.phase == "optimizer" else _coarse(_INSIDE.get(named, named))


def _coarse(named: str) -> str:
    return ELEMENTWISE if named in _COARSE else named


def _role(operator: Operator) -> str:
    own = (operator.module or "").rpartition(".")[2]
    return ATTENTION_PRODUCTS if own == "attention" else own or "no module"


def _rank(role: str) -> tuple[int, str]:
    return (ROLES.index(role) if role in ROLES else len(ROLES), role)
