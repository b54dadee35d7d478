"""A block's feed-forward network, where it has one: two products around an activation."""

from typing import NamedTuple

from peakward.prediction.operators import fp8_network
from peakward.prediction.operators.linear import BLOCK, SavedLinear, layers, products
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import of_type, tensor
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand

# Between the two products of a feed-forward network: the activation, and the gate's product.

_NAMES = {
    "silu": ("silu", "silu_backward"),
    "gelu": ("gelu", "gelu_backward"),
    "gelu-tanh": ("gelu", "gelu_backward"),
    "relu": ("relu", "threshold_backward"),
}


SavedActivation = tuple[Value, ...]
"""The first product's result and its activation; the gating of a lever keeps its own."""


def activation_forward(on: Writer, plan: Plan, widened: Value) -> tuple[SavedActivation, Value]:
    """Result of the first product, (…, d_ff), or two packed side by side with the gate first → (…, d_ff)."""
    if plan.gating is not None:
        kept, gated = plan.gating.forward(on, plan, widened)
        return kept, gated
    activated = on.pointwise(_NAMES[plan.shape.activation][0], _half(on, plan, widened, 0))
    product = activated
    if plan.shape.gated:
        product = on.pointwise("mul", activated, _half(on, plan, widened, 1))
    return (widened, activated), product


def activation_backward(on: Writer, plan: Plan, saved: SavedActivation, product: Value) -> Value:
    """Gradient of what goes into the second product (…, d_ff) → of what came out of the first."""
    on.saved(*saved)
    if plan.gating is not None:
        gradient: Value = plan.gating.backward(on, plan, saved, product)
        return gradient
    both, activation = saved
    widened = _half(on, plan, both, 0)
    name = _NAMES[plan.shape.activation][1]
    if not plan.shape.gated:
        kept = activation if plan.shape.activation == "relu" else widened
        return on.pointwise(name, product, kept)
    activated = on.pointwise("mul", product, _half(on, plan, both, 1))
    other = on.pointwise("mul", product, activation)
    gate = on.pointwise(name, activated, widened)
    return on.joined(gate, other, along=len(both.operand.shape) - 1)


def _half(on: Writer, plan: Plan, both: Value, which: int) -> Value:
    """(…, d_ff) of what may be gate and up side by side."""
    half = tensor(both.operand.dtype, *both.operand.shape[:-1], plan.shape.d_ff)
    return on.piece(both, half, which * plan.shape.d_ff)


# The network.


class SavedFeedForward(NamedTuple):
    """The tensors that autograd keeps of both products and between them."""

    up: SavedLinear
    activation: SavedActivation
    down: SavedLinear


def forward(on: Writer, plan: Plan, x: Value) -> tuple[SavedFeedForward, Value]:
    """The normed residual stream → what is added to it."""
    if plan.gating_in_fp8:
        kept, y = fp8_network.forward(on, plan, x)
        on.use(x)
        return SavedFeedForward(*kept), y
    up, widened, activated, product = _until_last_product(on, plan, x)
    down, y = products(plan).forward(on, layers(plan).down, product)
    on.use(x, widened)
    return SavedFeedForward(up, activated, down), y


def until_saved(on: Writer, plan: Plan, x: Value) -> SavedFeedForward:
    """As far as torch recomputes it: to the casts for the last product; a function of our own whole."""
    if plan.gating_in_fp8:
        return forward(on, plan, x)[0]
    up, widened, activated, product = _until_last_product(on, plan, x)
    down = products(plan).until_saved(on, layers(plan).down, product)
    on.use(x, widened)
    return SavedFeedForward(up, activated, down)


def result(plan: Plan) -> Operand:
    """The term that is added: (batch, seq, d_model) in the compute type."""
    return of_type(plan.hidden, plan.compute)


def backward(on: Writer, plan: Plan, saved: SavedFeedForward, gradient: Value) -> Value:
    """Gradient of the result → of the normed residual stream; also of all parameters."""
    if plan.gating_in_fp8:
        return fp8_network.backward(on, plan, (saved.up, saved.activation, saved.down), gradient)
    linear = products(plan)
    product = linear.backward(on, saved.down, gradient, plan.compute)
    with on.module(f"{BLOCK}.ff"):
        widened = activation_backward(on, plan, saved.activation, product)
    return linear.backward(on, saved.up, widened, plan.stored)


def _until_last_product(
    on: Writer, plan: Plan, x: Value
) -> tuple[SavedLinear, Value, SavedActivation, Value]:
    up, widened = products(plan).forward(on, layers(plan).up, x)
    with on.module(f"{BLOCK}.ff"):
        return up, widened, *activation_forward(on, plan, widened)
