"""Self-attention in compiled code, between its two projections."""

from typing import NamedTuple

from peakward.prediction.memory.compiled.graph import Buffer, Graph, GraphWriter
from peakward.prediction.memory.fused_attention import scratch
from peakward.prediction.operators.heads import keys, projected, queries
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import BOOL, FLOAT, tensor
from peakward.records.op_graph import Operand


class SavedAttention(NamedTuple):
    """Buffers that the backward pass reads."""

    packed: Buffer
    turned: tuple[Buffer, ...]
    """Queries and keys, where they were turned apart from the projection's result."""
    inner: tuple[Buffer, ...]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All that is kept."""
        return (self.packed, *self.turned, *self.inner)


def forward(graph: Graph, plan: Plan, packed: Buffer) -> tuple[SavedAttention, Buffer]:
    """Queries, keys and values of one projection → (batch, seq, heads · head_dim)."""
    turned: tuple[Buffer, ...] = ()
    if plan.rotation is None:
        turned = _turned(graph, plan, packed)
    else:
        on = GraphWriter(graph)
        value = on.value(packed, projected(plan))
        packed = on.buffer(plan.rotation.forward(on, plan, value))
    if plan.attention == "naive":
        return _naive(graph, plan, packed, turned or _laid_out(graph, plan, packed))
    out, log_sum_exp = graph.operator(*turned, packed, writes=(queries(plan), _sums(plan)))
    saved = SavedAttention(packed, turned, (out, log_sum_exp))
    # Row by row already: as they find the queries, or as the efficient kernel always does.
    if plan.attention == "efficient" or not plan.turned_apart:
        return saved, out
    return saved, graph.fused(out, writes=queries(plan))


def backward(graph: Graph, plan: Plan, saved: SavedAttention, gradient: Buffer) -> "Attended":
    """Gradient of (batch, seq, heads · head_dim) → of queries, keys and values."""
    q, k = queries(plan), keys(plan)
    if plan.attention == "naive":
        return _naive_backward(graph, plan, saved, gradient)
    made = graph.operator(gradient, *saved.buffers, writes=(q, k, k), scratch=scratch(plan))
    return Attended(made)


class Attended(NamedTuple):
    """The gradients of queries, keys and values, of which the first two are still turned."""

    gradients: tuple[Buffer, ...]


def joined(graph: Graph, plan: Plan, attended: Attended) -> Buffer:
    """The gradient of the projection's result: the queries' and keys' turned back, and all three side
    by side."""
    dq, dk, dv = attended.gradients
    heads = projected(plan)
    batch, n_heads, seq, size = heads.shape
    rows = tensor(plan.compute, batch, seq, n_heads * size)
    if plan.rotation is not None:
        on = GraphWriter(graph)
        value = on.value(graph.fused(dq, dk, dv, writes=heads), heads)
        turned = on.buffer(plan.rotation.backward(on, plan, value))
        return graph.fused(turned, writes=rows)
    if plan.stored != plan.compute:  # What is turned in another type is not joined in one go.
        dq, dk = _turned(graph, plan, dq, dk)
        return graph.fused(dq, dk, dv, writes=rows)
    if plan.attention == "efficient":  # Its gradients lie row by row, as the projection's has to.
        return graph.fused(dq, dk, dv, writes=rows)
    return graph.fused(graph.fused(dq, dk, dv, writes=heads), writes=rows)


def _laid_out(graph: Graph, plan: Plan, packed: Buffer) -> tuple[Buffer, Buffer]:
    """Queries and keys that lie as the projection laid them, each copied for the products."""
    q = queries(plan)
    return graph.fused(packed, writes=q), graph.fused(packed, writes=q)


def _turned(graph: Graph, plan: Plan, *read: Buffer) -> tuple[Buffer, Buffer]:
    """Queries and keys, in one kernel where they are alike."""
    q, k = queries(plan), keys(plan)
    if q == k:
        first, second = graph.fused_several(*read, writes=(q, k))
        return first, second
    return graph.fused(read[0], writes=q), graph.fused(read[-1], writes=k)


def _naive(
    graph: Graph, plan: Plan, packed: Buffer, turned: tuple[Buffer, ...]
) -> tuple[SavedAttention, Buffer]:
    """With the scores in memory; narrowed weights are made again from them."""
    scores = graph.product(*turned, writes=_scores(plan))
    narrowed = plan.compute != FLOAT
    inner: tuple[Buffer, ...] = ()
    if not plan.differentiated:
        weights = graph.fused(scores, writes=_scores(plan), over=scores)
    else:
        mask = graph.fused(writes=tensor(BOOL, plan.seq, plan.seq))
        if narrowed:
            row = tensor(FLOAT, plan.batch, plan.shape.n_heads, plan.seq, 1)
            weights, *rows = graph.fused_several(scores, mask, writes=(_scores(plan), row, row))
            inner = (scores, *rows)
        else:
            weights = graph.fused(scores, mask, writes=_scores(plan), over=scores)
        inner = (mask, *inner)
    values = graph.fused(packed, writes=queries(plan))
    out = graph.product(weights, values, writes=queries(plan))
    saved = SavedAttention(values, turned, (*inner, weights))
    return saved, graph.fused(out, writes=queries(plan))


def _naive_backward(graph: Graph, plan: Plan, saved: SavedAttention, gradient: Buffer) -> Attended:
    q, (*inner, weights) = queries(plan), saved.inner
    by_heads = graph.fused(gradient, writes=q)
    dv = graph.product(weights, by_heads, writes=q)
    of_weights = graph.product(by_heads, saved.packed, writes=_scores(plan))
    of_scores = graph.fused(of_weights, weights, *inner, writes=_scores(plan), over=of_weights)
    dk = graph.product(saved.turned[0], of_scores, writes=q)
    dq = graph.product(of_scores, saved.turned[1], writes=q)
    return Attended((dq, dk, dv))


def _scores(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.shape.n_heads, plan.seq, plan.seq)


def _sums(plan: Plan) -> Operand:
    return tensor(FLOAT, plan.batch, plan.shape.n_heads, plan.seq, 1)
