"""Puts another implementation in the place of an attention that `sites` found."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from peakward.kernels.ops.attention import own
from peakward.kernels.ops.flash_attention.api import flash_attention
from peakward.kernels.ops.flash_attention.checks import HEAD_DIMS
from peakward.lab.rewriting import masks, sites
from peakward.lab.rewriting.dataflow import (
    OF_SHAPE_ALONE,
    Leaves,
    Refused,
    called,
    is_tensor,
    prune,
    value,
)
from peakward.lab.rewriting.masks import Fact, Seen, Visible
from peakward.lab.rewriting.operands import Emit, Operand
from peakward.lab.rewriting.sites import Site

_16_BIT = (torch.float16, torch.bfloat16)
_HOPPER_HEAD_DIMS = (64, 80, 96, 128)


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """A part that has another implementation now."""

    what: str
    """"causal attention"."""
    facts: tuple[Fact, ...] = ()
    at_boundary: bool = False
    """A graph of more of the model may show that it needs no mask."""


Outcome = Replaced | Refused


def replace(graph: fx.Graph, implementation: str, leaves: Leaves) -> list[Outcome]:
    """Replace every attention of a graph, in place; what came of each.

    Args:
        implementation: one of `kernels.ops.attention`: torch's, by whichever backend, or of
            `own.IMPLEMENTATIONS`.
    """
    outcomes: list[Outcome] = []
    for node in list(graph.nodes):
        if called(node) == "multi_head_attention_forward":
            outcomes.append(_without_weights(node, implementation))
            continue
        if node._erased or (site := sites.find(node)) is None:
            continue
        outcomes.append(
            site if isinstance(site, Refused) else _replaced(site, implementation, leaves)
        )
    return outcomes


def _without_weights(node: fx.Node, implementation: str) -> Outcome:
    """torch's nn.MultiheadAttention calls its own attention where nobody asks for the probabilities."""
    if implementation in own.IMPLEMENTATIONS:
        return Refused(reason="its nn.MultiheadAttention takes torch's attention alone")
    given = inspect.signature(F.multi_head_attention_forward).bind(*node.args, **node.kwargs)
    if not given.arguments.get("need_weights", True):
        return Refused(reason="it calls scaled_dot_product_attention already")
    if any(called(each) != "getitem" or each.args[1] != 0 for each in node.users):
        return Refused(reason="its nn.MultiheadAttention's probabilities are read")
    node.args, node.kwargs = (), {**given.arguments, "need_weights": False}
    return Replaced(what="attention of nn.MultiheadAttention")


def _replaced(site: Site, implementation: str, leaves: Leaves) -> Outcome:
    if site.is_causal and len(set(site.lengths)) > 1:
        return Refused(reason="it is causal with fewer queries than keys, from the first key on")
    emit = _emitter(site.out)
    made = _mask(site, emit)
    seen, fact, at_boundary, may_hide_rows = _seen(site, made, leaves)
    reason = _obstacle(site, seen, implementation) or (
        _HIDDEN_ROWS if may_hide_rows and seen.kind == "other" and _hides_by_numbers(site) else None
    )
    if reason is not None:
        if made is not None and made is not site.mask:
            prune(made)
        return Refused(reason=reason, at_boundary=at_boundary)
    query, key, val = _operands(site, seen, implementation, emit)
    options = _options(site, seen, implementation)
    if seen.kind not in ("all", "causal") and implementation not in own.IMPLEMENTATIONS:
        options["attn_mask"] = _as_bias(site, made, emit)
    target = _target(implementation, options)
    with site.out.graph.inserting_before(site.out):
        new = site.out.graph.call_function(target, (query, key, val), options)
    _put(site, new, emit)
    if made is not None and made is not site.mask:
        prune(made)
    kind = {"all": "", "causal": "causal ", "window": "windowed ", "other": "masked "}[seen.kind]
    facts = () if fact is None else (fact,)
    return Replaced(what=f"{kind}attention", facts=facts, at_boundary=at_boundary)


def _emitter(before: fx.Node) -> Emit:
    def emit(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with before.graph.inserting_before(before):
            if isinstance(target, str):
                return before.graph.call_method(target, args, kwargs)
            return before.graph.call_function(target, args, kwargs)

    return emit


def _put(site: Site, new: fx.Node, emit: Emit) -> None:
    """The new result in the place of the old, in its order of dimensions."""
    lacks_heads = len(site.out_dims) == 3
    if lacks_heads:
        new = emit("squeeze", new, 1)
    places = {dim: i for i, dim in enumerate((0, 2, 3) if lacks_heads else (0, 1, 2, 3))}
    order = tuple(places[dim] for dim in site.out_dims)
    if order != tuple(range(len(order))):
        new = emit("permute", new, order)
    site.out.replace_all_uses_with(new)
    prune(site.out, frozenset(site.chain))


# The mask.


def _mask(site: Site, emit: Emit) -> fx.Node | None:
    """The sum of what the module does to the scores beside scaling them; None: nothing."""
    if not site.written_out:
        return site.mask
    _let_go_of_scores(site)
    scores = value(site.chain[0])
    mask: Any = None
    for kind, *rest in site.links:
        if mask is None and kind in ("fill", "keep"):
            mask = emit(torch.zeros, (1,), dtype=scores.dtype, device=scores.device)
        match kind:
            case "add":
                mask = rest[0] if mask is None else emit(torch.add, mask, rest[0])
            case "subtract":
                mask = emit(torch.neg, rest[0]) if mask is None else emit(torch.sub, mask, rest[0])
            case "fill":
                mask = emit(torch.where, rest[0], rest[1], mask)
            case "keep":
                mask = emit(torch.where, rest[0], mask, rest[1])
            case "scale mask" if mask is not None:
                mask = emit(torch.div if rest[1:] == [True] else torch.mul, mask, rest[0])
    found: fx.Node | None = mask
    return found


def _let_go_of_scores(site: Site) -> None:
    """Masks that are made in the shape of scores get that shape without scores."""
    for each in site.chain:
        like = [user for user in each.users if called(user) in OF_SHAPE_ALONE]
        scores = value(each)
        for user in like:
            with user.graph.inserting_before(user):
                one = user.graph.call_function(
                    torch.empty, ((),), {"dtype": scores.dtype, "device": scores.device}
                )
                shaped = user.graph.call_method("expand", (one, tuple(scores.shape)))
            user.replace_input_with(each, shaped)


def _seen(site: Site, mask: fx.Node | None, leaves: Leaves) -> Seen:
    if mask is None:
        return Seen(Visible("causal" if site.is_causal else "all"))
    return masks.seen(mask, *site.lengths, leaves)


def _as_bias(site: Site, mask: fx.Node | None, emit: Emit) -> fx.Node:
    """The mask as torch's function takes it: in the queries' type, of at least two dimensions."""
    assert mask is not None
    if not site.written_out:
        return mask
    fills = [link[2] for link in site.links if link[0] in ("fill", "keep")]
    bias = emit("to", mask, site.dtype)
    if all(isinstance(each, int | float) and each > -torch.inf for each in fills):
        # A row whose keys are all hidden by a finite number attends to all alike; cast to a type of less
        # range that number would be infinite, and the row NaN.
        bias = emit("clamp", bias, min=torch.finfo(site.dtype).min)
    return emit(_of_four, bias, heads_lie_in_batch=value(site.out).dim() == 3)


def _of_four(mask: Tensor, *, heads_lie_in_batch: bool) -> Tensor:
    """The mask with four dimensions: with fewer torch takes its slow kernel."""
    if heads_lie_in_batch and mask.dim() == 3:
        return mask.unsqueeze(1)
    return mask[(None,) * (4 - mask.dim())]


# Operands and options.


_HIDDEN_ROWS = (
    "its mask may hide all keys of a query by a number, for which torch's gradient is another"
)
"""They keep the logarithm of a row's sum beside its maximum of -3.4e38, where it is lost: the gradient of
a row of n keys is n times too large (torch 2.13's kernel for CPUs)."""


def _hides_by_numbers(site: Site) -> bool:
    """Whether keys are hidden by what is not minus infinity: filled in, or added without being learned."""
    for kind, *rest in site.links:
        if kind in ("fill", "keep") and rest[1] != -torch.inf:
            return True
        if kind in ("add", "subtract") and not value(rest[0]).requires_grad:
            return True
    return False


def _operands(
    site: Site, seen: Visible, implementation: str, emit: Emit
) -> tuple[fx.Node, fx.Node, fx.Node]:
    query, key, val = site.query, site.key, site.value
    if _groups_heads(site, seen, implementation):
        key, val = _before_repeat(key), _before_repeat(val)
    nodes = [each.emit(emit) for each in (query, key, val)]
    for factor, divides in site.factors:
        nodes[0] = emit(torch.div if divides else torch.mul, nodes[0], factor)
    batch = query.shape[0]
    for i, each in enumerate((query, key, val)):
        if each.shape[0] != batch:
            nodes[i] = emit("expand", nodes[i], batch, -1, -1, -1)
        if value(each.node).dtype != site.dtype or (i == 0 and site.factors):
            nodes[i] = emit("to", nodes[i], site.dtype)
    return nodes[0], nodes[1], nodes[2]


def _groups_heads(site: Site, seen: Visible, implementation: str) -> bool:
    """Whether keys and values need not be repeated for each of their queries' heads: with a mask, in fp32
    and with the memory-efficient kernel torch's attention of grouped heads is slow on a GPU."""
    if implementation in own.IMPLEMENTATIONS:
        return True
    on_cpu = value(site.out).device.type == "cpu"
    fits = site.dtype in _16_BIT and implementation != "sdpa-efficient"
    return seen.kind in ("all", "causal") and (on_cpu or fits)


def _before_repeat(operand: Operand) -> Operand:
    """Keys or values before each head was repeated for a group of queries' heads."""
    node = operand.node
    if operand.dims not in ((0, 1, 2, 3), (0, 1, 3, 2)):
        return operand
    name, source = called(node), node.args[0] if node.args else None
    if name == "repeat_interleave" and is_tensor(source):
        dim = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else None)
        fits = dim in (1, -3) and value(source).dim() == 4  # type: ignore[arg-type]
        return Operand(node=source, dims=operand.dims) if fits else operand  # type: ignore[arg-type]
    if name not in ("reshape", "view", "flatten") or called(source) != "expand":
        return operand
    spread = source.args[0]  # type: ignore[union-attr]
    narrow = spread.args[0] if called(spread) in ("getitem", "unsqueeze") else None  # type: ignore[union-attr]
    if not (is_tensor(source) and is_tensor(spread) and is_tensor(narrow)):
        return operand
    batch, heads, *rest = value(narrow).shape  # type: ignore[arg-type]
    wide = tuple(value(source).shape)  # type: ignore[arg-type]
    fits = (
        len(rest) == 2
        and tuple(value(spread).shape) == (batch, heads, 1, *rest)  # type: ignore[arg-type]
        and wide == (batch, heads, wide[2], *rest)
        and tuple(value(node).shape) == (batch, heads * wide[2], *rest)
    )
    return Operand(node=narrow, dims=operand.dims) if fits else operand  # type: ignore[arg-type]


def _options(site: Site, seen: Visible, implementation: str) -> dict[str, Any]:
    if implementation in own.IMPLEMENTATIONS:
        return {
            "causal": seen.kind != "all",
            "window": None if seen.window == site.lengths[1] else seen.window,
            "scale": site.scale,
        }
    key, val = site.key, site.value
    if _groups_heads(site, seen, implementation):
        key, val = _before_repeat(key), _before_repeat(val)
    return {
        "dropout_p": site.dropout,
        "is_causal": seen.kind == "causal",
        "scale": site.scale,
        "enable_gqa": not site.query.shape[1] == key.shape[1] == val.shape[1],
    }


def _obstacle(site: Site, seen: Visible, implementation: str) -> str | None:
    """Why the implementation does not take the case, or None."""
    if implementation not in own.IMPLEMENTATIONS:
        if site.written_out or (site.mask is not None and seen.kind in ("all", "causal")):
            return None
        return "it calls scaled_dot_product_attention already"
    head_dims = _HOPPER_HEAD_DIMS if implementation == "flash-hopper" else HEAD_DIMS
    head_dim = site.query.shape[-1]
    reasons = (
        (site.dropout > 0, f"{implementation} has no dropout, got {site.dropout}"),
        (seen.kind == "other", f"{implementation} takes causal attention or all keys, got a mask"),
        (
            seen.kind == "window" and seen.window != site.lengths[1] and implementation != "flash",
            f"{implementation} takes no window",
        ),
        (
            head_dim not in head_dims or site.value.shape[-1] != head_dim,
            f"{implementation} does not take heads of {head_dim} and values of {site.value.shape[-1]}",
        ),
        (
            site.dtype not in ((*_16_BIT, torch.float32) if implementation == "flash" else _16_BIT),
            f"{implementation} does not take {str(site.dtype)[6:]}",
        ),
        (site.scale <= 0, f"{implementation} takes a scale above 0, got {site.scale}"),
        (site.value.shape[1] != site.key.shape[1], "its keys and values are of other heads"),
    )
    return next((reason for failed, reason in reasons if failed), None)


# What runs in the graph.


def _target(implementation: str, options: dict[str, Any]) -> Callable[..., Tensor]:
    """torch's backend is a setting around the whole step."""
    if implementation not in own.IMPLEMENTATIONS:
        return F.scaled_dot_product_attention
    options["implementation"] = own.IMPLEMENTATIONS[implementation]
    return _flash


def _flash(query: Tensor, key: Tensor, val: Tensor, **options: Any) -> Tensor:
    """The kernels read rows that lie together."""
    tensors = (each if each.stride(-1) == 1 else each.contiguous() for each in (query, key, val))
    return flash_attention(*tensors, **options)
