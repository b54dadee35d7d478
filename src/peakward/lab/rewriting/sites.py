"""Finds attention in a graph: a call of torch's scaled_dot_product_attention, or softmax(q·kᵀ)·v written out.

Both come to one `Site`. A scale may stand before or after the mask, a mask may be filled in, chosen by
`where` or added, and products may be matmul, bmm, baddbmm or einsum.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from peakward.lab.rewriting.dataflow import (
    CASTS,
    OF_SHAPE_ALONE,
    Refused,
    argument,
    called,
    is_returned,
    is_tensor,
    value,
)
from peakward.lab.rewriting.operands import PLAIN, Operand, Stop, of_scores, of_values

_FILLS = ("masked_fill", "masked_fill_")


@dataclass(frozen=True, kw_only=True)
class Site:
    """One attention."""

    out: fx.Node
    """Its result."""
    query: Operand
    key: Operand
    value: Operand
    scale: float
    factors: tuple[tuple[fx.Node, bool], ...] = ()
    """Tensors that the scores are multiplied by, or divided by (True); the same for a head's scores."""
    links: tuple[tuple[Any, ...], ...] = ()
    """The changes of the scores, in order: ("add", node), ("fill", where, number or node),
    ("keep", where, number or node), ("scale", number or node)."""
    mask: fx.Node | None = None
    """The mask of a call of torch's function."""
    is_causal: bool = False
    """So called: query i sees keys up to i."""
    dropout: float = 0.0
    out_dims: tuple[int, ...] = (0, 1, 2, 3)
    """The result's dimensions among (batch, heads, rows, head_dim), in its order."""
    written_out: bool
    chain: tuple[fx.Node, ...] = ()
    """The nodes between scores and result."""

    @property
    def dtype(self) -> torch.dtype:
        return value(self.out).dtype

    @property
    def lengths(self) -> tuple[int, int]:
        return self.query.shape[2], self.key.shape[2]


def find(node: fx.Node) -> Site | Refused | None:
    """The attention that a softmax or a call of torch's function is at the heart of; None: the node is
    neither, or a softmax of something else."""
    name = called(node)
    try:
        if name == "scaled_dot_product_attention":
            return _call(node)
        if name == "softmax":
            return _written_out(node)
    except Stop as stop:
        return stop.refused
    return None


def _call(node: fx.Node) -> Site:
    tensors = [argument(node, i, name) for i, name in enumerate(("query", "key", "value"))]
    if not all(is_tensor(each) and value(each).dim() == 4 for each in tensors):
        raise Stop("its tensors are not of four dimensions of known sizes")
    query, key, val = (Operand(node=each, dims=PLAIN) for each in tensors)
    scale = argument(node, 6, "scale")
    dropout = argument(node, 4, "dropout_p", 0.0)
    if not isinstance(dropout, int | float) or not isinstance(scale, int | float | None):
        raise Stop("its scale or its dropout is not a number")
    return Site(
        out=node,
        query=query,
        key=key,
        value=val,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else float(scale),
        mask=argument(node, 3, "attn_mask"),
        is_causal=bool(argument(node, 5, "is_causal", False)),
        dropout=float(dropout),
        written_out=False,
    )


def _written_out(node: fx.Node) -> Site | None:
    scores_in = argument(node, 0, "input")
    if not is_tensor(scores_in) or not _is_last(node, value(scores_in).dim()):
        return None
    if (scores := _scores(scores_in)) is None:
        if _comes_from_outside(scores_in):
            raise Stop("its scores are computed outside", at_boundary=True)
        return None
    probs, dropout, through = _to_values(node)
    (out,) = probs.users
    val, out_dims = of_values(out, probs)
    query, key = of_scores(scores.product)
    _same_rank(query, key, val)
    return Site(
        out=out,
        query=query,
        key=key,
        value=val,
        scale=scores.scale,
        factors=tuple(scores.factors),
        links=tuple(scores.links),
        dropout=dropout,
        out_dims=out_dims,
        written_out=True,
        chain=(*scores.nodes, node, *through),
    )


def _is_last(softmax: fx.Node, n_dims: int) -> bool:
    return argument(softmax, 1, "dim") in (-1, n_dims - 1)


def _same_rank(query: Operand, key: Operand, val: Operand) -> None:
    (b, h, _, d), (kb, kh, k_len, kd), (vb, vh, v_len, _) = query.shape, key.shape, val.shape
    if d != kd or k_len != v_len or {kb, vb} - {b, 1} or {kh, vh} - {h, 1}:
        raise Stop("its queries, keys and values are broadcast against one another")


# From the softmax on to the values.


def _to_values(softmax: fx.Node) -> tuple[fx.Node, float, list[fx.Node]]:
    """The probabilities as they are multiplied, how many are dropped, and the nodes on the way."""
    probs, dropout, through = softmax, 0.0, list[fx.Node]()
    while True:
        user = _only_user(probs, "its probabilities")
        name = called(user)
        if name in CASTS:
            pass
        elif name == "dropout":
            dropout = _dropped(user, dropout)
        elif name in _PRODUCTS:
            return probs, dropout, through
        else:
            raise Stop(f"its probabilities go through {name}")
        probs = user
        through.append(user)


def _only_user(node: fx.Node, what: str) -> fx.Node:
    users = list(node.users)
    if is_returned(node):
        raise Stop(f"{what} are returned", at_boundary=True)
    if len(users) != 1:
        raise Stop(f"{what} are read more than once")
    return users[0]


def _dropped(node: fx.Node, before: float) -> float:
    p, training = argument(node, 1, "p", 0.5), argument(node, 2, "training", True)
    training = node.kwargs.get("train", training)
    if not training or p == 0:
        return before
    if before or not isinstance(p, int | float):
        raise Stop("its dropout is drawn twice, or is not a number")
    return float(p)


def _comes_from_outside(node: fx.Node) -> bool:
    while called(node) in CASTS | {"add", "mul", "div", *_FILLS}:
        node = node.args[0]  # type: ignore[assignment]
    return node.op == "placeholder"


# From the softmax back to the product of queries and keys.

_PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")


@dataclass(kw_only=True)
class _Scores:
    product: fx.Node
    scale: float
    factors: list[tuple[fx.Node, bool]]
    links: list[tuple[Any, ...]]
    nodes: list[fx.Node]


def _scores(node: object) -> _Scores | None:
    """How scores come of one product; None where they do not."""
    name = called(node)
    if not isinstance(node, fx.Node) or not is_tensor(node) or name is None:
        return None
    name = name.removesuffix("_")
    if name in _PRODUCTS:
        return _begun(node, name)
    step = _STEPS.get(name) or (_cast if name in CASTS else None)
    if step is None:
        if name in _BENDS and any(_scores(each) is not None for each in node.all_input_nodes):
            raise Stop(f"its scores go through {name}")
        return None
    for each in node.all_input_nodes:
        found = _scores(each)
        if found is not None:
            _only_user_of_scores(each)
            if value(each).shape != value(node).shape:
                raise Stop("its scores are broadcast against a larger mask")
            step(found, node, each)
            found.nodes.append(node)
            return found
    return None


_BENDS = (
    *("tanh", "clamp", "clip", "relu", "sigmoid", "exp", "log_softmax", "view", "reshape"),
    "cat",  # A sink beside the keys, as gpt-oss has.
)


def _only_user_of_scores(node: fx.Node) -> None:
    # A mask may be made in the scores' shape: that reads no values of them.
    readers = [each for each in node.users if called(each) not in OF_SHAPE_ALONE]
    if is_returned(node):
        raise Stop("its scores are returned", at_boundary=True)
    if len(readers) != 1:
        raise Stop("its scores are read more than once")


def _begun(node: fx.Node, name: str) -> _Scores | None:
    made = _Scores(product=node, scale=1.0, factors=[], links=[], nodes=[node])
    if name == "einsum":
        return made
    if name == "baddbmm":
        beta = node.kwargs.get("beta", 1)
        made.scale = float(node.kwargs.get("alpha", 1))  # type: ignore[arg-type]
        if beta:
            made.links.append(("add", node.args[0]))
            if beta != 1:
                made.links.append(("scale mask", beta))
    return made


def _cast(_scores: _Scores, _node: fx.Node, _of: fx.Node) -> None:
    """Rounds, at most."""


def _scaled(scores: _Scores, node: fx.Node, of: fx.Node) -> None:
    divides = called(node) in ("div", "div_")
    first, second = node.args[0], argument(node, 1, "other")
    if divides and (first is not of or node.kwargs.get("rounding_mode")):
        raise Stop("its scores divide something")
    factor: Any = second if first is of else first
    if isinstance(factor, int | float):
        scores.scale = scores.scale / factor if divides else scores.scale * factor
        scores.links.append(("scale mask", 1 / factor if divides else factor))
        return
    if not is_tensor(factor) or any(size != 1 for size in value(factor).shape[-2:]):
        raise Stop("its scores are scaled one by one")
    if value(node).dim() == 3 and value(factor).numel() > 1:
        raise Stop("its scores of three dimensions are scaled by more than one number")
    scores.factors.append((factor, divides))
    scores.links.append(("scale mask", factor, divides))


def _added(scores: _Scores, node: fx.Node, of: fx.Node) -> None:
    first, second = node.args[0], argument(node, 1, "other")
    bias = second if first is of else first
    subtracts = called(node) in ("sub", "sub_")
    if node.kwargs.get("alpha", 1) != 1 or (subtracts and first is not of):
        raise Stop("its scores are subtracted from something")
    if not is_tensor(bias):
        raise Stop("a number is added to its scores")
    scores.links.append(("subtract" if subtracts else "add", bias))


def _filled(scores: _Scores, node: fx.Node, of: fx.Node) -> None:
    where, fill = argument(node, 1, "mask"), argument(node, 2, "value")
    if node.args[0] is not of:
        raise Stop("its scores are filled into something")
    scores.links.append(("fill", where, fill))


def _chosen(scores: _Scores, node: fx.Node, of: fx.Node) -> None:
    if node.op == "call_method":  # scores.where(condition, other)
        first, where, other = (
            node.args[0],
            argument(node, 1, "condition"),
            argument(node, 2, "other"),
        )
    else:
        where, first, other = (
            argument(node, i, n) for i, n in enumerate(("condition", "input", "other"))
        )
    if first is of:
        scores.links.append(("keep", where, other))
    elif other is of:
        scores.links.append(("fill", where, first))
    else:
        raise Stop("its scores choose something")


_STEPS: dict[str, Callable[[_Scores, fx.Node, fx.Node], None]] = {
    "mul": _scaled,
    "div": _scaled,
    "add": _added,
    "sub": _added,
    "masked_fill": _filled,
    "where": _chosen,
}
