"""Self-attention between its two projections: RoPE, the attention itself, and the heads' layout."""

from peakward.predict.operators import fused_attention, naive_attention, rotation
from peakward.predict.operators.layout import dense, is_view, swapped
from peakward.predict.operators.plan import Plan
from peakward.predict.operators.tape import Tape, tensor
from peakward.records.op_graph import Operand


def forward(tape: Tape, plan: Plan) -> Operand:
    """What the first projection gave → (batch, seq, heads · head_dim)."""
    shape = plan.shape
    rotated = shape.positions == "rope"
    if rotated:
        for heads in (shape.n_heads, shape.n_kv_heads):
            rotation.forward(tape, _heads(plan, heads), plan.stored)
    if plan.attention == "naive":
        naive_attention.forward(tape, plan)
    else:
        fused_attention.forward(tape, plan)
    # The fused kernel lays its result out as the query is: turned, or inside the projection.
    by_heads = plan.attention == "naive" or rotated
    return _side_by_side(tape, _heads(plan, shape.n_heads), by_heads=by_heads)


def backward(tape: Tape, plan: Plan) -> Operand:
    """Gradient of (batch, seq, heads · head_dim) → of what the first projection gave."""
    shape = plan.shape
    q, k = _heads(plan, shape.n_heads), _heads(plan, shape.n_kv_heads)
    if plan.attention == "naive":
        naive_attention.backward(tape, plan)
    else:
        fused_attention.backward(tape, plan)
    if shape.positions == "rope":
        for each in (k, q):
            rotation.backward(tape, each, plan.stored)
    return _side_by_side(tape, tape.joined(q, k, k, along=1), by_heads=True)


def _side_by_side(tape: Tape, x: Operand, *, by_heads: bool) -> Operand:
    """x (batch, heads, seq, head_dim) → (batch, seq, heads · head_dim), copied if it lies in memory
    head by head."""
    batch, heads, seq, size = x.shape
    rows = tensor(x.dtype, batch, seq, heads, size)
    together = tensor(x.dtype, batch, seq, heads * size)
    if by_heads and not is_view(rows.shape, swapped(dense(x.shape), 1, 2), together.shape):
        tape.copied(rows)
    return together


def _heads(plan: Plan, n: int) -> Operand:
    return tensor(plan.compute, plan.batch, n, plan.seq, plan.shape.head_dim)
