"""RMSNorm in compiled code, torch's: what attention adds to the stream stays a tensor beside it."""

from typing import NamedTuple

from peakward.prediction.memory.compiled.graph import Buffer, Graph
from peakward.prediction.operators.compiled import norms
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, of_type, tensor


class SavedNorm(NamedTuple):
    """The input as the tensors that it is the sum of, and the statistics of each position."""

    stream: tuple[Buffer, ...]
    statistics: Buffer
    made: tuple[Buffer, ...] = ()
    """Those of the input's tensors that the graph made; the stream before a block its caller has."""


class Between(NamedTuple):
    """The gradient of the stream between the halves of a block."""

    narrow: Buffer
    """In the compute type."""
    wide: Buffer
    second: "Normed"


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
        return SavedNorm(stream, normed, stream[1:]), normed
    statistics, normed = graph.fused_several(*stream, writes=(norms.statistics(plan), y))
    return SavedNorm(stream, statistics, stream[1:]), normed


def behind(graph: Graph, plan: Plan, stream: Buffer, second: SavedNorm, added: Buffer) -> Buffer:
    """The stream with what both halves of a block add to it."""
    _, beside = second.stream
    return graph.fused(stream, beside, added, writes=plan.hidden, over=added)


def between(graph: Graph, plan: Plan, saved: SavedNorm, gradient: Buffer, past: Buffer) -> Between:
    """From the gradient of what a block's second norm gave, and the one that went past it."""
    second, x = Normed(saved, gradient), plan.hidden
    if plan.stored == plan.compute:
        both = graph.fused(*second.reads, past, writes=x)
        return Between(both, both, second)
    narrowed = of_type(x, plan.compute)
    wide, narrow = graph.fused_several(*second.reads, past, writes=(x, narrowed))
    return Between(narrow, wide, second)


def before(
    graph: Graph, plan: Plan, saved: SavedNorm, gradient: Buffer, past: Between
) -> tuple[Buffer, list[Buffer]]:
    """From the gradient of what a block's first norm gave: that of the block's input, and those of both
    norms' weights."""
    first = Normed(saved, gradient)
    if norms.mixes(plan):
        x, parts = _mixed(graph, plan, first, past.second, past=past.wide)
    else:
        parts = parts_of_weights(graph, plan, first, past.second)
        x = graph.fused(*first.reads, past.wide, writes=plan.hidden, over=past.wide)
    return x, [of_weight(graph, plan, each) for each in parts]


def last(graph: Graph, plan: Plan, saved: SavedNorm, gradient: Buffer) -> tuple[Buffer, Buffer]:
    """From the gradient of what the final norm gave: that of the stream, and the weight's."""
    norm = Normed(saved, gradient)
    if norms.mixes(plan):
        x, (parts,) = _mixed(graph, plan, norm)
    else:
        x = graph.fused(*norm.reads, writes=plan.hidden)
        (parts,) = parts_of_weights(graph, plan, norm)
    return x, of_weight(graph, plan, parts)


def _mixed(
    graph: Graph, plan: Plan, *normed: Normed, past: Buffer | None = None
) -> tuple[Buffer, tuple[Buffer, ...]]:
    """One kernel takes the first norm's gradient along the rows, with what went past it, and for every norm
    the sums over parts of the rows, all of which lie in one workspace."""
    reads = [each for one in normed for each in one.reads]
    part = norms.partial_sums(plan, norms.MIXED_PART_ROWS)
    workspace = tensor(part.dtype, len(normed), *part.shape)
    beside = () if past is None else (past,)
    x, parts = graph.fused_several(*reads, *beside, writes=(plan.hidden, workspace), over=past)
    return x, (parts,) * len(normed)


def parts_of_weights(graph: Graph, plan: Plan, *normed: Normed) -> tuple[Buffer, ...]:
    """The sums over parts of the rows for each weight's gradient, in one kernel."""
    parts = (norms.partial_sums(plan, norms.PART_ROWS),) * len(normed)
    return graph.fused_several(*(each for one in normed for each in one.reads), writes=parts)


def of_weight(graph: Graph, plan: Plan, parts: Buffer) -> Buffer:
    """A weight's gradient from its parts; by torch's own sum where a mixed kernel made them."""
    if not norms.mixes(plan):
        return graph.fused(parts, writes=norms.weight(plan))
    (total,) = graph.operator(parts, writes=(tensor(FLOAT, plan.shape.d_model),))
    if plan.stored == FLOAT:
        return total
    return graph.fused(total, writes=norms.weight(plan))
