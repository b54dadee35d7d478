"""The operands of attention's two products, whether matmul, bmm, baddbmm or einsum, in one order of
dimensions: (batch, heads, rows, head_dim)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from peakward.lab.rewriting.dataflow import Refused, argument, called, is_tensor, value

PLAIN = (0, 1, 2, 3)
Emit = Callable[..., fx.Node]
"""emit("permute", node, dims): a call of Tensor's method of that name, put into the graph."""


class Stop(Exception):
    """Carries a `Refused` to the one who asked."""

    def __init__(self, reason: str, *, at_boundary: bool = False) -> None:
        super().__init__(reason)
        self.refused = Refused(reason=reason, at_boundary=at_boundary)


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A node as one of the operands, and how its dimensions become those of attention."""

    node: fx.Node
    dims: tuple[int | None, ...]
    """For each of (batch, heads, rows, head_dim) the node's dimension; None: one that it lacks."""

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = value(self.node).shape
        return tuple(1 if each is None else sizes[each] for each in self.dims)

    def emit(self, emit: Emit) -> fx.Node:
        """(batch, heads, rows, head_dim)."""
        own = tuple(each for each in self.dims if each is not None)
        node = self.node if own == tuple(range(len(own))) else emit("permute", self.node, own)
        for place, each in enumerate(self.dims):
            if each is None:
                node = emit("unsqueeze", node, place)
        return node


def of_scores(node: fx.Node) -> tuple[Operand, Operand]:
    """Queries and keys."""
    if called(node) == "einsum":
        return _einsum_scores(node)
    first, second = node.args[-2:] if called(node) == "baddbmm" else node.args[:2]
    query, key = _plain(first), _plain(second)
    turned = Operand(node=key.node, dims=(*key.dims[:2], key.dims[3], key.dims[2]))
    return query, _before_transpose(turned)


def _plain(node: Any) -> Operand:
    n_dims = value(node).dim() if is_tensor(node) else 0
    if n_dims == 4:
        return Operand(node=node, dims=PLAIN)
    if n_dims == 3:
        return Operand(node=node, dims=(0, None, 1, 2))
    raise Stop(f"its products are of {n_dims} dimensions, not of 3 or 4")


def _before_transpose(key: Operand) -> Operand:
    """The keys before they were turned to be multiplied, so that they are not turned twice."""
    node = key.node
    turned = argument(node, 0, "input")
    if called(node) not in ("transpose", "swapaxes", "swapdims") or not is_tensor(turned):
        return key
    n, word = value(node).dim(), "axis" if called(node) == "swapaxes" else "dim"
    one, two = (int(argument(node, at, f"{word}{at - 1}")) % n for at in (1, 2))
    swap = {one: two, two: one}
    dims = tuple(None if each is None else swap.get(each, each) for each in key.dims)
    return Operand(node=turned, dims=dims)


def of_values(out: fx.Node, probs: fx.Node) -> tuple[Operand, tuple[int, ...]]:
    """The values, and the order of the result's dimensions."""
    name = called(out)
    if name == "einsum":
        return _einsum_values(out, probs)
    if name == "baddbmm" or out.args[0] is not probs:
        raise Stop("its probabilities are not the first of a plain product")
    val = _plain(argument(out, 1, "other" if name == "matmul" else "mat2"))
    return val, (0, 2, 3) if value(out).dim() == 3 else PLAIN


_Labels = list[str]


def _equation(node: fx.Node) -> tuple[_Labels, _Labels, _Labels, Any, Any]:
    text, *tensors = node.args
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = list(tensors[0])
    written = str(text).replace(" ", "")
    if "." in written or "->" not in written or len(tensors) != 2:
        raise Stop(f"its einsum is {text}")
    inputs, result = written.split("->")
    first, second, out = (list(each) for each in (*inputs.split(","), result))
    if any(len(set(each)) != len(each) for each in (first, second, out)):
        raise Stop(f"its einsum is {text}")
    return first, second, out, tensors[0], tensors[1]


def _einsum_scores(node: fx.Node) -> tuple[Operand, Operand]:
    a, b, out, one, two = _equation(node)
    *batch, i, j = out
    if i in b:
        a, b, one, two = b, a, two, one
    summed = [each for each in a if each not in out]
    if i in b or j in a or len(summed) != 1 or len(batch) > 2 or any(x not in a for x in batch):
        raise Stop(f"its scores are the einsum {node.args[0]}")
    return _labelled(one, a, batch, i, summed[0]), _labelled(two, b, batch, j, summed[0])


def _einsum_values(node: fx.Node, probs: fx.Node) -> tuple[Operand, tuple[int, ...]]:
    a, b, out, one, two = _equation(node)
    if one is not probs:
        a, b, one, two = b, a, two, one
    *batch, i, j = a
    free = [each for each in b if each not in a]
    if j in out or j not in b or len(free) != 1 or len(batch) > 2 or i in b:
        raise Stop(f"its values are in the einsum {node.args[0]}")
    canonical = [*(batch if len(batch) == 2 else [*batch, None]), i, free[0]]
    if set(out) != {each for each in canonical if each is not None}:
        raise Stop(f"its values are in the einsum {node.args[0]}")
    return _labelled(two, b, batch, j, free[0]), tuple(canonical.index(each) for each in out)


def _labelled(node: Any, labels: _Labels, batch: list[str], rows: str, columns: str) -> Operand:
    if not is_tensor(node) or set(labels) - {*batch, rows, columns}:
        raise Stop("its einsum sums over more than one label")
    outer = [*batch, None] if len(batch) == 1 else batch
    wanted = [*outer, rows, columns]
    dims = tuple(labels.index(each) if each and each in labels else None for each in wanted)
    return Operand(node=node, dims=dims)
