"""RoPE's turn of queries or keys, whose halves autocast computes in the angles' type."""

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import Plan
from peakward.records.op_graph import ITEM_BYTES


def forward(line: Timeline, plan: Plan, heads: int, packed: int) -> int:
    """A view of (batch, heads, seq, head_dim) → the same, dense. Nothing of it is kept."""
    n = _elements(plan, heads)
    half = n // 2 * ITEM_BYTES[plan.stored]
    parts = []
    for _ in ("low", "high"):
        first, second = line.op(half, packed), line.op(half, packed)
        parts.append(line.op(half, first, second))
    turned = line.op(2 * half, *parts)
    if plan.stored == plan.compute:
        return turned
    return line.op(n * ITEM_BYTES[plan.compute], turned)


def backward(line: Timeline, plan: Plan, heads: int, gradient: int) -> int:
    """Gradient of the turned → of x, both in the compute type."""
    n = _elements(plan, heads)
    cast = plan.stored != plan.compute
    half, narrow = (n // 2 * ITEM_BYTES[each] for each in (plan.stored, plan.compute))

    def product(*uses: int) -> int:
        made = line.op(half, *uses)
        return line.op(narrow, made) if cast else made

    if cast:
        gradient = line.op(2 * half, gradient)
    low, high = product(gradient), product(gradient)
    minus = line.op(half, gradient)
    product(minus)
    product(gradient)
    return line.op(2 * narrow, low, high)


def _elements(plan: Plan, heads: int) -> int:
    return plan.tokens * heads * plan.shape.head_dim
