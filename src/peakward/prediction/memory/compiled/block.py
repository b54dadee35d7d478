"""One block in compiled code, kernel by kernel as an H200 ran it (torch 2.11, recorded allocations).

A block is one graph forward and one backward. The gradients of its weights are cast to the types of
the weights at the very end, so that until then those of all four lie there in the compute type.
"""

from typing import NamedTuple

from peakward.prediction.memory.compiled import attention, linear
from peakward.prediction.memory.compiled.attention import SavedAttention
from peakward.prediction.memory.compiled.graph import Buffer, Graph, GraphWriter
from peakward.prediction.memory.compiled.linear import SavedLinear
from peakward.prediction.memory.compiled.norms import SavedNorm
from peakward.prediction.memory.compiled.stream import stream
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.layers import layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import of_type, tensor
from peakward.records.op_graph import Operand


class SavedBlock(NamedTuple):
    """Buffers that the forward graph returns beside its result."""

    attention_norm: SavedNorm
    qkv: SavedLinear
    attention: SavedAttention
    out: SavedLinear
    ff_norm: SavedNorm
    up: SavedLinear
    both: Buffer
    down: SavedLinear

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All that is kept but the block's input, which its caller has."""
        layers_ = (self.qkv, self.out, self.up, self.down)
        return (
            *(each for layer in layers_ for each in layer.buffers),
            *self.attention.buffers,
            *(self.attention_norm.statistics, self.ff_norm.statistics),
            *self.ff_norm.made,
            self.both,
        )


def forward(line: Timeline, plan: Plan, x: int, *, tuning: bool) -> tuple[SavedBlock, int]:
    """The residual stream → the same behind the block. x is there to the end: its caller has it."""
    graph, layer, rows = Graph(), layers(plan), plan.tokens
    norms, given = stream(plan), Buffer(plan.hidden, x)
    first, y = norms.forward(graph, plan, given)
    qkv, packed = linear.forward(graph, layer.qkv, y, rows)
    attended, mixed = attention.forward(graph, plan, packed)
    out, beside = linear.forward(graph, layer.out, mixed, rows)
    second, y = norms.forward(graph, plan, given, beside)
    up, both = linear.forward(graph, layer.up, y, rows)
    gated = _activated(graph, plan, both)
    down, added = linear.forward(graph, layer.down, gated, rows)
    behind = norms.behind(graph, plan, given, second, added)
    saved = SavedBlock(first, qkv, attended, out, second, up, both, down)
    kept = saved.buffers if plan.differentiated else ()
    graph.run(line, behind, *kept, tuning=tuning)
    line.use(x)
    return saved, behind.place


def backward(line: Timeline, plan: Plan, saved: SavedBlock, gradient: int, *, tuning: bool) -> int:
    """Gradient behind the block → before it; also of all parameters."""
    graph, rows, norms = Graph(), plan.tokens, stream(plan)
    incoming = Buffer(plan.hidden, gradient)
    narrow = _narrow(graph, plan, incoming)
    gated = linear.of_input(graph, saved.down, narrow, rows)
    down = linear.of_weight(graph, saved.down, narrow)
    both = _activated_backward(graph, plan, gated, saved.both)
    normed = linear.of_input(graph, saved.up, both, rows)
    up = linear.of_weight(graph, saved.up, both)
    between = norms.between(graph, plan, saved.ff_norm, normed, incoming)
    mixed = linear.of_input(graph, saved.out, between.narrow, rows)
    attended = attention.backward(graph, plan, saved.attention, mixed)
    out = linear.of_weight(graph, saved.out, between.narrow)
    packed = attention.joined(graph, plan, attended)
    normed = linear.of_input(graph, saved.qkv, packed, rows)
    before, weights = norms.before(graph, plan, saved.attention_norm, normed, between)
    qkv = linear.of_weight(graph, saved.qkv, packed)
    pairs = ((saved.out, out), (saved.qkv, qkv), (saved.down, down), (saved.up, up))
    weights += [linear.widened(graph, layer, each) for layer, each in pairs]
    line.saved(*(each.place for each in saved.buffers))
    graph.run(line, before, *weights, tuning=tuning)
    line.use(gradient)
    line.gradients(*(each.place for each in weights))
    return before.place


def _activated(graph: Graph, plan: Plan, both: Buffer) -> Buffer:
    """Result of the feed-forward network's first product → input of the second."""
    if plan.gating is None:
        return graph.fused(both, writes=_gated(plan))
    on = GraphWriter(graph)
    return on.buffer(plan.gating.forward(on, plan, on.value(both, _both(plan)))[1])


def _activated_backward(graph: Graph, plan: Plan, gradient: Buffer, both: Buffer) -> Buffer:
    """Gradient of what goes into the second product → of what the first gave, of which `both` is kept."""
    if plan.gating is None:
        return graph.fused(gradient, both, writes=_both(plan))
    on = GraphWriter(graph)
    kept, given = (on.value(both, _both(plan)),), on.value(gradient, _gated(plan))
    return on.buffer(plan.gating.backward(on, plan, kept, given))


def _narrow(graph: Graph, plan: Plan, x: Buffer) -> Buffer:
    if plan.stored == plan.compute:
        return x
    return graph.fused(x, writes=of_type(plan.hidden, plan.compute))


def _gated(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.seq, plan.shape.d_ff)


def _both(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.seq, 2 * plan.shape.d_ff)
