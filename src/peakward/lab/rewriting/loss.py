"""Puts Peakward's cross-entropy in the place of torch's in a graph, or one with the output layer in it.

Logits that the graph returns beside the loss are then computed only if the caller reads them (`Later`).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from peakward.kernels.ops.cross_entropy.api import cross_entropy, cross_entropy_over_logits
from peakward.kernels.ops.linear_cross_entropy import api as linear_cross_entropy
from peakward.lab.rewriting.attention import Outcome, Replaced
from peakward.lab.rewriting.dataflow import (
    CASTS,
    Refused,
    argument,
    called,
    is_tensor,
    prune,
    value,
)

_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_RESHAPES = ("view", "reshape", "flatten")


@dataclass(frozen=True, kw_only=True)
class Site:
    """One call of torch's cross-entropy: the mean over rows of logits, by the class of each."""

    out: fx.Node
    logits: fx.Node
    """(tokens, vocabulary)."""
    targets: fx.Node
    ignore_index: int
    label_smoothing: float
    path: tuple[fx.Node, ...]
    """From the output layer's product to the logits as the loss takes them; empty where they come of no
    product, or are computed on."""

    @property
    def head(self) -> fx.Node | None:
        return self.path[0] if self.path else None


@dataclass(frozen=True, kw_only=True)
class Returned:
    """A result of a graph that is left out of it: it is computed of two others when it is read."""

    place: int
    """In the graph's output. The graph gives the hidden states there."""
    weight_place: int
    compute: fx.GraphModule
    like: Tensor


def replace(graph: fx.Graph, implementation: str) -> tuple[list[Outcome], list[Returned]]:
    """Replace every cross-entropy of a graph, in place; what came of each, and results left out.

    Args:
        implementation: `fused`, or one of `linear_cross_entropy.IMPLEMENTATIONS`.
    """
    outcomes: list[Outcome] = []
    returned: list[Returned] = []
    for node in list(graph.nodes):
        if called(node) != "cross_entropy":
            continue
        _turn_back(node)
        site = _find(node)
        if isinstance(site, Refused):
            outcomes.append(site)
        elif implementation == "fused":
            outcomes.append(_fused(site))
        else:
            outcome, left_out = _with_head(site, implementation)
            outcomes.append(outcome)
            returned.extend(left_out)
    return outcomes, returned


def _turn_back(node: fx.Node) -> None:
    """Let a mean over logits that were turned for it, as (batch, tokens, vocabulary) by `transpose(1, 2)`, be
    one over their rows, which is the same."""
    turned, targets = argument(node, 0, "input"), argument(node, 1, "target")
    if not is_tensor(turned) or not is_tensor(targets):
        return
    if (value(turned).dim(), value(targets).dim()) != (3, 2):
        return
    dims = tuple(each for each in (*turned.args[1:], *turned.kwargs.values()) if type(each) is int)
    swaps = called(turned) in ("transpose", "swapaxes", "swapdims") and len(dims) == 2
    logits = turned.args[0] if turned.args else None
    is_turned = (swaps and {each % 3 for each in dims} == {1, 2}) or (
        called(turned) == "permute" and dims == (0, 2, 1)
    )
    if not is_turned or not is_tensor(logits) or argument(node, 6, "reduction", "mean") != "mean":
        return
    flat = {logits: (-1, value(turned).shape[1]), targets: (-1,)}
    with node.graph.inserting_before(node):
        for each, shape in flat.items():
            rows = node.graph.call_method("reshape", (each, shape))
            rows.meta["example_value"] = value(each).reshape(shape)
            node.replace_input_with(turned if each is logits else each, rows)
    prune(turned)


def _find(node: fx.Node) -> Site | Refused:
    logits, targets = argument(node, 0, "input"), argument(node, 1, "target")
    if not is_tensor(logits) or not is_tensor(targets):
        return Refused(reason="its logits or its targets are of no known sizes")
    if argument(node, 2, "weight") is not None or argument(node, 6, "reduction", "mean") != "mean":
        return Refused(reason="its loss weighs classes, or is no mean")
    if argument(node, 3, "size_average") is not None or argument(node, 5, "reduce") is not None:
        return Refused(
            reason="its loss is reduced as older torch was told to: say reduction='mean'"
        )
    if value(targets).dtype != torch.int64 or value(logits).dtype not in _TYPES:
        got = f"{str(value(logits).dtype)[6:]} and {str(value(targets).dtype)[6:]}"
        return Refused(reason=f"its loss is of {got}, not of 16 or 32 bits and int64")
    if value(logits).dim() != 2:
        return Refused(
            reason=f"its loss is of logits of {value(logits).dim()} dimensions, not (tokens, vocabulary)"
        )
    return Site(
        out=node,
        logits=logits,
        targets=targets,
        ignore_index=int(argument(node, 4, "ignore_index", -100)),
        label_smoothing=float(argument(node, 7, "label_smoothing", 0.0)),
        path=_path(logits),
    )


def _path(logits: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes between the product and the loss, where these are casts and choices of rows alone."""
    width, path = value(logits).shape[-1], [logits]
    while True:
        node = path[0]
        name = called(node)
        if name in ("linear", "matmul", "mm", "addmm"):
            return tuple(path)
        source = node.args[0] if node.args else None
        moves_rows = name in (*_RESHAPES, "getitem") or name in CASTS
        if not moves_rows or not is_tensor(source) or value(source).shape[-1] != width:  # type: ignore[arg-type]
            return ()
        if name == "getitem" and not _leaves_columns(node, value(source).dim()):  # type: ignore[arg-type]
            return ()
        path.insert(0, source)  # type: ignore[arg-type]


def _leaves_columns(node: fx.Node, n_dims: int) -> bool:
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if any(not isinstance(each, slice | int | type(...)) for each in index):
        return False
    return ... in index or len(index) < n_dims or index[-1] == slice(None)


def _emit(site: Site, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    with site.out.graph.inserting_before(site.out):
        if isinstance(target, str):
            return site.out.graph.call_method(target, args, kwargs)
        return site.out.graph.call_function(target, args, kwargs)


def _put(site: Site, new: fx.Node, what: str) -> Replaced:
    site.out.replace_all_uses_with(new)
    prune(site.out)
    return Replaced(what=what)


def _fused(site: Site) -> Replaced:
    options = {"ignore_index": site.ignore_index, "label_smoothing": site.label_smoothing}
    targets = _emit(site, "contiguous", site.targets)
    dtype = value(site.out).dtype
    if site.head is None or any(len(each.users) > 1 for each in site.path):
        logits = _emit(site, "to", site.logits, dtype)
        return _put(site, _emit(site, cross_entropy, logits, targets, **options), "cross-entropy")
    # Nobody else reads them: not cast, and their gradient is written over them.
    logits = _rows(site, site.path[0])
    new = _emit(site, cross_entropy_over_logits, logits, targets, loss_dtype=dtype, **options)
    return _put(site, new, "cross-entropy over its logits")


def _rows(site: Site, node: fx.Node) -> fx.Node:
    """(tokens, …) of what has the rows of the product: what `path` does to the logits' rows."""
    for each in site.path[1:]:
        if called(each) == "getitem":
            node = _emit(site, each.target, node, each.args[1])
        elif called(each) in _RESHAPES:
            node = _emit(site, "reshape", node, (*value(each).shape[:-1], -1))
    return node


# With the output layer in it.


def _with_head(site: Site, implementation: str) -> tuple[Outcome, list[Returned]]:
    head = site.head
    reason = _obstacle(site)
    if reason is not None or head is None:
        return Refused(reason=reason or "", at_boundary=_is_from_outside(site)), []
    hidden, weight = head.args[0], argument(head, 1, "weight")
    new = _emit(
        site,
        _loss_with_head,
        _rows(site, hidden),  # type: ignore[arg-type]
        weight,
        site.targets,
        implementation=implementation,
        ignore_index=site.ignore_index,
        loss_dtype=value(site.out).dtype,
    )
    done = _put(site, new, f"output layer and cross-entropy ({implementation})")
    left_out = _leave_out(head)
    return done, left_out


def _loss_with_head(hidden: Tensor, weight: Tensor, targets: Tensor, **options: Any) -> Tensor:
    given = (hidden.contiguous(), weight.contiguous(), targets.contiguous())
    return linear_cross_entropy.linear_cross_entropy(*given, **options)


def _is_from_outside(site: Site) -> bool:
    node = site.logits
    while called(node) in CASTS | {*_RESHAPES, "getitem"}:
        node = node.args[0]  # type: ignore[assignment]
    return node.op == "placeholder"


def _obstacle(site: Site) -> str | None:
    head = site.head
    if head is None:
        return "its logits come of no output layer, or are changed before the loss"
    if called(head) != "linear":
        return f"its output layer is a {called(head)}, not torch's linear"
    if argument(head, 2, "bias") is not None:
        return "its output layer has a bias"
    if site.label_smoothing:
        return f"its loss smooths labels by {site.label_smoothing}"
    if value(head.args[0]).dtype != value(argument(head, 1, "weight")).dtype and (  # type: ignore[arg-type]
        value(head).dtype == value(head.args[0]).dtype  # type: ignore[arg-type]
    ):
        return "its hidden states and its output layer are of different types"
    readers = _readers(head) - {site.out}
    if any(each.op != "output" for each in readers):
        names = ", ".join(sorted(str(called(each)) for each in readers if each.op != "output"))
        return f"its logits are read by more than the loss ({names})"
    return None


def _readers(head: fx.Node) -> set[fx.Node]:
    """Whoever reads logits, or what is only another form of them."""
    found, waiting = set[fx.Node](), [head]
    while waiting:
        for user in waiting.pop().users:
            only_moved = called(user) in CASTS | {*_RESHAPES, "getitem"}
            (waiting.append if only_moved else found.add)(user)
    return found


def _leave_out(head: fx.Node) -> list[Returned]:
    """Take logits that are returned out of the output, which gets their hidden states instead."""
    graph, hidden, weight = head.graph, head.args[0], argument(head, 1, "weight")
    (output,) = (each for each in graph.nodes if each.op == "output")
    results = list(output.args[0])
    forms = _forms(head)
    places = [i for i, each in enumerate(results) if each in forms]
    if not places:
        prune(head)
        return []
    left_out = [
        Returned(
            place=i,
            weight_place=len(results),
            compute=_extracted(head, results[i]),
            like=value(results[i]),
        )
        for i in places
    ]
    gone = [results[i] for i in places]
    for i in places:
        results[i] = hidden
    output.args = ((*results, weight),)
    for each in gone:
        prune(each)
    return left_out


def _forms(head: fx.Node) -> list[fx.Node]:
    found = [head]
    for each in found:
        found.extend(user for user in each.users if called(user) in CASTS | {*_RESHAPES, "getitem"})
    return found


def _extracted(head: fx.Node, node: fx.Node) -> fx.GraphModule:
    """A graph of the hidden states and the weight that gives the node's value."""
    path = [node]
    while path[0] is not head:
        path.insert(0, path[0].args[0])  # type: ignore[arg-type]
    graph = fx.Graph()
    known = {
        head.args[0]: graph.placeholder("hidden"),
        argument(head, 1, "weight"): graph.placeholder("weight"),
    }
    for each in path:
        known[each] = graph.node_copy(each, known.__getitem__)
    graph.output(known[node])
    return fx.GraphModule(torch.nn.Module(), graph)
