"""Between the two products of a feed-forward network: the activation, and the gate's product."""

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape, tensor
from peakward.records.op_graph import Operand

_NAMES = {
    "silu": ("silu", "silu_backward"),
    "gelu": ("gelu", "gelu_backward"),
    "gelu-tanh": ("gelu", "gelu_backward"),
    "relu": ("relu", "threshold_backward"),
}


def forward(tape: Tape, plan: Plan, x: Operand) -> Operand:
    """x (…, d_ff), of two packed side by side the gate → the same shape."""
    if plan.swiglu == "fused":
        tape.own("swiglu", (_both(x),), (x,))
        return x
    tape.pointwise(_NAMES[plan.shape.activation][0], x)
    if plan.shape.gated:
        tape.pointwise("mul", x, x)
    return x


def backward(tape: Tape, plan: Plan, x: Operand) -> Operand:
    """Gradient of what goes into the second product (…, d_ff) → of what came out of the first."""
    if plan.swiglu == "fused":
        both = _both(x)
        tape.own("swiglu_backward", (x, both), (both,))
        return both
    if plan.shape.gated:
        tape.pointwise("mul", x, x)
        tape.pointwise("mul", x, x)
    tape.pointwise(_NAMES[plan.shape.activation][1], x, x)
    return tape.joined(x, x, along=len(x.shape) - 1) if plan.shape.gated else x


def _both(x: Operand) -> Operand:
    """Gate and up side by side: (…, 2 · d_ff)."""
    return tensor(x.dtype, *x.shape[:-1], 2 * x.shape[-1])
