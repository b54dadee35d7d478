"""Between the two products of a feed-forward network: the activation, and the gate's product."""

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import tensor
from peakward.prediction.operators.writer import Value, Writer

_NAMES = {
    "silu": ("silu", "silu_backward"),
    "gelu": ("gelu", "gelu_backward"),
    "gelu-tanh": ("gelu", "gelu_backward"),
    "relu": ("relu", "threshold_backward"),
}


SavedActivation = tuple[Value, ...]
"""The first product's result and its activation; the gating of a lever keeps its own."""


def forward(on: Writer, plan: Plan, widened: Value) -> tuple[SavedActivation, Value]:
    """Result of the first product, (…, d_ff), or two packed side by side with the gate first → (…, d_ff)."""
    if plan.gating is not None:
        kept, gated = plan.gating.forward(on, plan, widened)
        return kept, gated
    half = _half(plan, widened)
    activated = on.pointwise(_NAMES[plan.shape.activation][0], half)
    product = on.pointwise("mul", activated, half) if plan.shape.gated else activated
    return (widened, activated), product


def backward(on: Writer, plan: Plan, saved: SavedActivation, product: Value) -> Value:
    """Gradient of what goes into the second product (…, d_ff) → of what came out of the first."""
    on.saved(*saved)
    if plan.gating is not None:
        gradient: Value = plan.gating.backward(on, plan, saved, product)
        return gradient
    both, activation = saved
    widened = _half(plan, both)
    name = _NAMES[plan.shape.activation][1]
    if not plan.shape.gated:
        kept = activation if plan.shape.activation == "relu" else widened
        return on.pointwise(name, product, kept)
    activated = on.pointwise("mul", product, widened)
    other = on.pointwise("mul", product, activation)
    gate = on.pointwise(name, activated, widened)
    return on.joined(gate, other, along=len(both.operand.shape) - 1)


def _half(plan: Plan, both: Value) -> Value:
    """(…, d_ff) of what may be gate and up side by side."""
    return both.viewed(tensor(both.operand.dtype, *both.operand.shape[:-1], plan.shape.d_ff))
