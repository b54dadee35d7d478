"""Functions with a backward pass of their own (`torch.autograd.Function`), in graphs that run as they stand.

Dynamo makes two graphs of one and calls them by an operator that is meant for a compiler. Run as it stands it
defines a class at each call, which holds what the backward pass needs: until garbage is collected, and in
torch 2.11, where all intermediate results are results too, for ever. An eager step of a model in fp8 then
keeps all of its activations, and cannot be captured after it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

_OPERATOR = torch.ops.higher_order.autograd_function_apply
_OPTIONS = {"non_differentiable_idx", "saved_for_backward_idx", "dirty_idx"}


def called_once(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph, whose functions with a backward pass of their own keep what they need no longer than it is
    needed; changed in place, as are the graphs that it calls."""
    for each in graph.modules():
        if not isinstance(each, fx.GraphModule):
            continue
        found = [node for node in each.graph.nodes if node.target is _OPERATOR and _OPTIONS >= set(node.kwargs)]
        for node in found:
            node.target = _apply
        if found:
            each.recompile()
    return graph


def _apply(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    *inputs: Any,
    saved_for_backward_idx: Sequence[int],
    non_differentiable_idx: Sequence[int] = (),
    dirty_idx: Sequence[int] = (),
) -> Any:
    """The operator of torch: of what `forward` returns beside its results, `saved_for_backward_idx` was given
    to `save_for_backward`, and the rest kept otherwise."""
    places = saved_for_backward_idx, non_differentiable_idx, dirty_idx
    return _Function.apply(forward, backward, places, *inputs)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forward: fx.GraphModule, backward: fx.GraphModule, places: Any, *inputs: Any
    ) -> Any:
        results, kept = forward(*inputs)
        saved, fixed, dirty = places
        several = results if isinstance(results, (tuple, list)) else (results,)
        # A result that is kept in another way would hold the node that holds it.
        own = {id(each) for each in several}
        ctx.saved = [i for i, each in enumerate(kept) if i in saved or id(each) in own]
        ctx.save_for_backward(*(kept[i] for i in ctx.saved))
        ctx.kept = [None if i in ctx.saved else each for i, each in enumerate(kept)]
        ctx.mark_dirty(*(several[i] for i in dirty))
        ctx.mark_non_differentiable(*(several[i] for i in fixed))
        ctx.backward_of = backward
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        kept = list(ctx.kept)
        for i, each in zip(ctx.saved, ctx.saved_tensors, strict=True):
            kept[i] = each
        found = ctx.backward_of(*gradients, *kept)
        return None, None, None, *(found if isinstance(found, (tuple, list)) else (found,))
