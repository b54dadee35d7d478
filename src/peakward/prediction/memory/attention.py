"""Self-attention between its two projections."""

from typing import NamedTuple

from peakward.prediction.memory import fused_attention, naive_attention, rotation
from peakward.prediction.memory.fused_attention import SavedFused
from peakward.prediction.memory.naive_attention import SavedScores
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import Plan
from peakward.records.op_graph import ITEM_BYTES


class Mixed(NamedTuple):
    """What attention gives, what it keeps, and the locals that its caller holds on to."""

    saved: SavedScores | SavedFused
    result: int
    held: tuple[int, ...]


def forward(line: Timeline, plan: Plan, packed: int) -> Mixed:
    """Queries, keys and values of one projection → (batch, seq, heads · head_dim)."""
    shape, q, k = plan.shape, packed, packed
    if plan.turned_apart:
        q = rotation.forward(line, plan, shape.n_heads, packed)
        k = rotation.forward(line, plan, shape.n_kv_heads, packed)
    elif shape.positions == "rope" and plan.differentiated:
        q = k = packed = line.op(_width(plan, shape.n_heads + 2 * shape.n_kv_heads), packed)
    if (
        plan.from_cache
    ):  # What was written to it is let go of; of queries made anew the projection too.
        k = packed = q if plan.turned_apart else packed
    naive = plan.attention == "naive"
    run = naive_attention.forward if naive else fused_attention.forward
    saved, mixed = run(line, plan, q, k, packed)
    held = (packed, q, k, mixed)
    if _copied(plan):
        line.use(*held)
        mixed = line.op(_width(plan, shape.n_heads), mixed)
    return Mixed(saved, mixed, held)


def backward(line: Timeline, plan: Plan, saved: SavedScores | SavedFused, gradient: int) -> int:
    """Gradient of (batch, seq, heads · head_dim) → of the projection's result."""
    shape = plan.shape
    if isinstance(saved, SavedScores):
        q, k, v = naive_attention.backward(line, plan, saved, gradient)
    else:
        q, k, v = fused_attention.backward(line, plan, saved, gradient)
    if plan.turned_apart:
        k = rotation.backward(line, plan, shape.n_kv_heads, k)
        q = rotation.backward(line, plan, shape.n_heads, q)
    width = _width(plan, shape.n_heads + 2 * shape.n_kv_heads)
    joined = line.op(width, q, k, v)
    copied = line.op(width, joined)  # Head by head, copied token by token.
    turned_at_once = shape.positions == "rope" and not plan.turned_apart
    return line.op(width, copied) if turned_at_once else copied


def _copied(plan: Plan) -> bool:
    """Whether the result has to be laid out row by row: cuDNN's kernel, flash and Peakward's own lay
    it out as they find the queries, head by head where they were turned; the efficient one always row
    by row."""
    if plan.seq == 1:  # Of one token any layout will do.
        return False
    return plan.attention == "naive" or (plan.turned_apart and plan.attention != "efficient")


def _width(plan: Plan, heads: int) -> int:
    return plan.tokens * heads * plan.shape.head_dim * ITEM_BYTES[plan.compute]
