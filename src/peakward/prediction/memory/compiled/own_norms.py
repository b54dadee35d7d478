"""A lever's norm in compiled code: an operator each way, and casts and sums as kernels of their own."""

from typing import NamedTuple

from peakward.prediction.memory.compiled.graph import Buffer, Graph, GraphWriter
from peakward.prediction.memory.compiled.norms import SavedNorm
from peakward.prediction.operators import norms
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, of_type, tensor
from peakward.records.op_graph import Operand


class Between(NamedTuple):
    """The gradient of the stream between the halves of a block."""

    narrow: Buffer
    """In the compute type."""
    parts: tuple[Buffer, ...]
    """The terms of the sum: one where the norm's kernel made the sum."""
    weight: Buffer
    """The second norm's weight's gradient."""


def forward(graph: Graph, plan: Plan, *stream: Buffer) -> tuple[SavedNorm, Buffer]:
    """The residual stream → normalised, in the compute type. What is added to it is summed first, by the
    norm's own kernel where both are of one type."""
    given = stream
    if len(stream) > 1 and not plan.sums_in_norm:
        given = (graph.fused(*stream, writes=plan.hidden),)
    on = GraphWriter(graph)
    saved, y, _ = norms.forward(on, plan, *[on.value(each, plan.hidden) for each in given])
    total, statistics, normed = map(on.buffer, (saved.x, *saved.statistics, y))
    made = (total,) if len(stream) > 1 else ()
    return SavedNorm((total,), statistics, made), _cast(graph, plan, normed, plan.compute)


def behind(graph: Graph, plan: Plan, stream: Buffer, second: SavedNorm, added: Buffer) -> Buffer:
    """The stream, `stream` and attention's result in it already, with what is added to it last."""
    del stream
    (total,) = second.stream
    alike = added if plan.sums_in_norm else None
    # The sum is kept for a backward pass.
    over = alike if plan.differentiated else alike or total
    return graph.fused(total, added, writes=plan.hidden, over=over)


def between(graph: Graph, plan: Plan, saved: SavedNorm, gradient: Buffer, past: Buffer) -> Between:
    """From the gradient of what a block's second norm gave, and the one that went past it."""
    beside = (past,) if plan.sums_in_norm else ()
    x, weight = _backward(graph, plan, saved, gradient, *beside)
    if plan.sums_in_norm:
        return Between(x, (x,), weight)
    narrow = graph.fused(past, x, writes=of_type(plan.hidden, plan.compute))
    return Between(narrow, (x, past), weight)


def before(
    graph: Graph, plan: Plan, saved: SavedNorm, gradient: Buffer, past: Between
) -> tuple[Buffer, list[Buffer]]:
    """From the gradient of what a block's first norm gave: that of the block's input, and those of both
    norms' weights."""
    x, weight = _backward(graph, plan, saved, gradient)
    total = graph.fused(*past.parts, x, writes=plan.hidden, over=past.parts[0])
    return total, [weight, past.weight]


def last(graph: Graph, plan: Plan, saved: SavedNorm, gradient: Buffer) -> tuple[Buffer, Buffer]:
    """From the gradient of what the final norm gave: that of the stream, and the weight's."""
    return _backward(graph, plan, saved, gradient)


def _backward(
    graph: Graph, plan: Plan, saved: SavedNorm, gradient: Buffer, *past: Buffer
) -> tuple[Buffer, Buffer]:
    wide = _cast(graph, plan, gradient, plan.stored)
    on = GraphWriter(graph)
    given, *past_ = [on.value(each, plan.hidden) for each in (wide, *past)]
    (total,) = saved.stream
    kept = norms.SavedNorm(
        on.value(total, plan.hidden), (on.value(saved.statistics, tensor(FLOAT, plan.tokens)),)
    )
    x = on.buffer(norms.backward(on, plan, kept, given, *past_))
    (weight,) = on.gradients
    return x, weight


def _cast(graph: Graph, plan: Plan, x: Buffer, dtype: str) -> Buffer:
    if x.dtype == dtype:
        return x
    result: Operand = of_type(plan.hidden, dtype)
    return graph.fused(x, writes=result)
