"""RMSNorm in compiled code."""

from typing import NamedTuple

from peakward.prediction.memory.compiled.graph import Buffer, Graph
from peakward.prediction.operators.compiled import norms
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import of_type


class SavedNorm(NamedTuple):
    """The input as the tensors that it is the sum of, and the statistics of each position."""

    stream: tuple[Buffer, ...]
    statistics: Buffer


class Normed(NamedTuple):
    """A norm, and the gradient of what it gave."""

    saved: SavedNorm
    gradient: Buffer

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """All that its gradients are made from."""
        return (*self.saved.stream, self.saved.statistics, self.gradient)


def forward(graph: Graph, plan: Plan, *stream: Buffer) -> tuple[SavedNorm, Buffer]:
    """The residual stream → normalised, in the compute type."""
    y = of_type(plan.hidden, plan.compute)
    if not plan.differentiated:
        normed = graph.fused(*stream, writes=y)
        return SavedNorm(stream, normed), normed
    statistics, normed = graph.fused_several(*stream, writes=(norms.statistics(plan), y))
    return SavedNorm(stream, statistics), normed


def parts_of_weights(graph: Graph, plan: Plan, *normed: Normed) -> tuple[Buffer, ...]:
    """Of each weight's gradient the sums over parts of the rows, in one kernel."""
    n_rows = norms.MIXED_PART_ROWS if norms.mixes(plan) else norms.PART_ROWS
    parts = (norms.partial_sums(plan, n_rows),) * len(normed)
    return graph.fused_several(*(each for one in normed for each in one.reads), writes=parts)


def of_weight(graph: Graph, plan: Plan, parts: Buffer) -> Buffer:
    """A weight's gradient from its parts."""
    return graph.fused(parts, writes=norms.weight(plan))
