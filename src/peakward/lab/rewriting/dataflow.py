"""Reads Dynamo's graphs: what a node calls, what it depends on, and what that is worth on real tensors.

The graphs are of torch's functions and Tensor's methods, as a module wrote them, with shapes in
`meta["example_value"]`.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

_OPERATORS: dict[Any, str] = {
    operator.add: "add",
    operator.iadd: "add_",
    operator.sub: "sub",
    operator.isub: "sub_",
    operator.mul: "mul",
    operator.imul: "mul_",
    operator.truediv: "div",
    operator.itruediv: "div_",
    operator.matmul: "matmul",
    operator.getitem: "getitem",
}
_SYNONYMS = {"true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub"}
OF_SHAPE_ALONE = frozenset(
    {"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full", "empty_like"}
)
"""Functions that read the shape, type and device of their first argument, and none of its values."""
CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous"})
"""Calls that leave values as they are, but for rounding."""
SAME = CASTS | {"clone", "detach"}
"""Calls whose result has the values of their first argument."""
_MOST_NODES = 400
"""A mask that depends on more than these is not worked out: it comes from the model's data."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Why a part is left as it is."""

    reason: str
    at_boundary: bool = False
    """A graph of more of the model may show what this one does not."""


def called(node: object) -> str | None:
    """The name of what a node calls: "softmax" of all three of torch's. In-place ones end in "_"."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        name = _OPERATORS.get(node.target) or str(getattr(node.target, "__name__", node.target))
    else:
        return None
    return _SYNONYMS.get(name, name)


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument, given by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def value(node: fx.Node) -> Tensor:
    """The tensor without values that Dynamo had in the node's place."""
    found: Tensor = node.meta["example_value"]
    return found


def is_tensor(node: object) -> bool:
    """Whether a node gives one tensor of a shape that is known in numbers."""
    if not isinstance(node, fx.Node):
        return False
    found = node.meta.get("example_value")
    return isinstance(found, Tensor) and all(type(each) is int for each in found.shape)


def follow_in_place(graph: fx.Graph) -> None:
    """Let whatever reads a tensor after an operator that changes it in place read that operator's result,
    which is the same tensor: then the graph's edges tell who reads which values."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        name = called(node)
        changed = node.args[0] if node.args else None
        if name is None or not _is_in_place(name) or not isinstance(changed, fx.Node):
            continue
        later = [user for user in changed.users if order[user] > order[node]]
        for user in later:
            user.replace_input_with(changed, node)


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_") and not name.endswith("__")


def drop_unread(graph: fx.Graph) -> None:
    """Erase copies and casts that nobody reads: results that the caller of the traced code let go of."""
    for node in reversed(graph.nodes):
        if not node.users and called(node) in SAME:
            graph.erase_node(node)


def is_returned(node: fx.Node) -> bool:
    """Whether a node, or a copy of it, is a result of the graph."""
    return any(
        each.op == "output" or (called(each) in SAME and is_returned(each)) for each in node.users
    )


def prune(node: fx.Node, changes_in_place: frozenset[fx.Node] = frozenset()) -> None:
    """Erase a node that nobody reads, and what only it read.

    Args:
        changes_in_place: nodes that may go although they change a tensor, because nobody sees it.
    """
    name = called(node)
    if (
        node._erased
        or node.users
        or name is None
        or (_is_in_place(name) and node not in changes_in_place)
    ):
        return
    inputs = node.all_input_nodes
    node.graph.erase_node(node)
    for each in inputs:
        prune(each, changes_in_place)


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """The inputs of a compiled graph, and which of them a module keeps from call to call."""

    examples: Sequence[Any]
    """Those of the call that it was compiled at."""
    kept: frozenset[int]
    """Places of the inputs that are tensors of a module, its buffers above all."""
    place: dict[fx.Node, int]
    """The input that a placeholder stands for, also one of a graph inside the graph."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A tensor that depends on inputs at these places alone, and how it comes of them."""

    places: tuple[int, ...]
    graph: fx.GraphModule

    def compute(self, given: Sequence[Any]) -> Tensor:
        """The tensor, of all inputs of the graph that it was found in."""
        with torch.no_grad(), unset_fake_temporarily():
            found: Tensor = self.graph(*(given[place] for place in self.places))
        return found


def constant(node: fx.Node, leaves: Leaves) -> Constant | None:
    """How a node comes of the graph's inputs; None where it is drawn at random, depends on what has no
    place, or on too much."""
    needed = _needed(node)
    if needed is None:
        return None
    inputs = [each for each in node.graph.nodes if each in needed and each.op == "placeholder"]
    if any(each not in leaves.place for each in inputs):
        return None
    graph = fx.Graph()
    known = {each: graph.placeholder(each.name) for each in inputs}

    def given(each: fx.Node) -> fx.Node:
        return known[each] if each in known else _in_shape_of(each, graph)

    for each in node.graph.nodes:
        if each not in needed or each in known:
            continue
        known[each] = graph.node_copy(each, given)
    graph.output(known[node])
    assert node.graph.owning_module is not None
    module = fx.GraphModule(node.graph.owning_module, graph)
    return Constant(places=tuple(leaves.place[each] for each in inputs), graph=module)


def _needed(node: fx.Node) -> set[fx.Node] | None:
    """A node and all that its values depend on, where that is not much and nothing is drawn."""
    needed: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each in needed:
            continue
        needed.add(each)
        name = called(each)
        if len(needed) > _MOST_NODES or name in _RANDOM:
            return None
        waiting.extend(_read(each))
    return needed


def _read(node: fx.Node) -> list[fx.Node]:
    """The inputs whose values a node reads: a mask that is made in the type of hidden states, as
    `triu(…).type_as(h)`, depends on none of them."""
    name = called(node)
    unread: tuple[object, ...] = ()
    if name in OF_SHAPE_ALONE:
        unread = node.args[:1]
    elif name in ("type_as", "to"):
        unread = node.args[1:2]
    return [each for each in node.all_input_nodes if each not in unread or not is_tensor(each)]


def _in_shape_of(node: fx.Node, graph: fx.Graph) -> fx.Node:
    """A tensor with a node's shape, type and device, and any values."""
    found = value(node)
    one = graph.call_function(torch.empty, ((),), {"dtype": found.dtype, "device": found.device})
    return graph.call_method("expand", (one, tuple(found.shape)))


_RANDOM = frozenset({"dropout", "rand", "randn", "randint", "rand_like", "randn_like", "bernoulli"})


def are_real(tensors: Iterable[Any]) -> bool:
    """Whether none of them is a tensor without values."""
    return not any(isinstance(each, FakeTensor) for each in tensors)
