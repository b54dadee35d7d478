"""Peakward's cross-entropy with the output layer in it, called from compiled code."""

from peakward.prediction.memory.compiled.graph import Buffer, Graph
from peakward.prediction.memory.linear_loss import saved_operands, scratch, scratch_backward
from peakward.prediction.operators.linear_loss import kept, operands
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import of_type


def forward(graph: Graph, plan: Plan, normed: Buffer) -> tuple[Buffer, ...]:
    """The normalised stream, in the compute type → what the backward pass takes."""
    _, weight = operands(plan)
    given = [normed]
    if plan.stored != plan.compute:
        given.append(graph.fused(writes=weight, category="weight_casts"))
    made = graph.operator(*given, writes=kept(plan), scratch=scratch(plan))
    return *saved_operands(plan, *given), *made


def backward(graph: Graph, plan: Plan, saved: tuple[Buffer, ...]) -> tuple[Buffer, Buffer]:
    """The gradients of the normalised stream and of the weight, the latter in its own type."""
    made = graph.operator(*saved, writes=operands(plan), scratch=scratch_backward(plan))
    x, weight = made
    if plan.stored == plan.compute:
        return x, weight
    return x, graph.fused(weight, writes=of_type(operands(plan)[1], plan.stored))
