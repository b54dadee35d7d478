"""Between the two products of a feed-forward network: the activation, and the gate's product."""

from typing import NamedTuple

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import tensor
from peakward.prediction.operators.writer import Value, Writer

_NAMES = {
    "silu": ("silu", "silu_backward"),
    "gelu": ("gelu", "gelu_backward"),
    "gelu-tanh": ("gelu", "gelu_backward"),
    "relu": ("relu", "threshold_backward"),
}


class SavedActivation(NamedTuple):
    """What came out of the first product, and its activation; of Peakward's SwiGLU the first is all."""

    widened: Value
    activated: Value


def forward(on: Writer, plan: Plan, widened: Value) -> tuple[SavedActivation, Value]:
    """What the first product gave, (…, d_ff) or of two packed side by side the gate first → (…, d_ff)."""
    half = _half(plan, widened)
    if plan.swiglu == "fused":
        (made,) = on.call("peakward.swiglu", (widened,), (half.operand,))
        return SavedActivation(widened, widened), made
    activated = on.pointwise(_NAMES[plan.shape.activation][0], half)
    product = on.pointwise("mul", activated, half) if plan.shape.gated else activated
    return SavedActivation(widened, activated), product


def backward(on: Writer, plan: Plan, saved: SavedActivation, product: Value) -> Value:
    """Gradient of what goes into the second product (…, d_ff) → of what came out of the first."""
    on.saved(*saved)
    widened, both = _half(plan, saved.widened), saved.widened.operand
    if plan.swiglu == "fused":
        return on.call("peakward.swiglu_backward", (product, saved.widened), (both,))[0]
    name = _NAMES[plan.shape.activation][1]
    if not plan.shape.gated:
        kept = saved.activated if plan.shape.activation == "relu" else widened
        return on.pointwise(name, product, kept)
    activated = on.pointwise("mul", product, widened)
    other = on.pointwise("mul", product, saved.activated)
    gate = on.pointwise(name, activated, widened)
    return on.joined(gate, other, along=len(both.shape) - 1)


def _half(plan: Plan, both: Value) -> Value:
    """(…, d_ff) of what may be gate and up side by side."""
    return both.viewed(tensor(both.operand.dtype, *both.operand.shape[:-1], plan.shape.d_ff))
