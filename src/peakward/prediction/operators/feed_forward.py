"""A block's feed-forward network, where it has one: two products around an activation."""

from typing import NamedTuple

from peakward.prediction.operators import activation
from peakward.prediction.operators.activation import SavedActivation
from peakward.prediction.operators.layers import BLOCK, layers
from peakward.prediction.operators.linear import SavedLinear
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.products import products
from peakward.prediction.operators.tape import of_type
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand


class SavedFeedForward(NamedTuple):
    """The tensors that autograd keeps of both products and between them."""

    up: SavedLinear
    activation: SavedActivation
    down: SavedLinear


def forward(on: Writer, plan: Plan, x: Value) -> tuple[SavedFeedForward, Value]:
    """The normed residual stream → what is added to it."""
    up, widened, activated, product = _until_last_product(on, plan, x)
    down, y = products(plan).forward(on, layers(plan).down, product)
    on.use(x, widened)
    return SavedFeedForward(up, activated, down), y


def until_saved(on: Writer, plan: Plan, x: Value) -> SavedFeedForward:
    """As far as torch recomputes it: to the casts for the last product."""
    up, widened, activated, product = _until_last_product(on, plan, x)
    down = products(plan).until_saved(on, layers(plan).down, product)
    on.use(x, widened)
    return SavedFeedForward(up, activated, down)


def result(plan: Plan) -> Operand:
    """The term that is added: (batch, seq, d_model) in the compute type."""
    return of_type(plan.hidden, plan.compute)


def backward(on: Writer, plan: Plan, saved: SavedFeedForward, gradient: Value) -> Value:
    """Gradient of the result → of the normed residual stream; also of all parameters."""
    linear = products(plan)
    product = linear.backward(on, saved.down, gradient, plan.compute)
    with on.module(f"{BLOCK}.ff"):
        widened = activation.backward(on, plan, saved.activation, product)
    return linear.backward(on, saved.up, widened, plan.stored)


def _until_last_product(
    on: Writer, plan: Plan, x: Value
) -> tuple[SavedLinear, Value, SavedActivation, Value]:
    up, widened = products(plan).forward(on, layers(plan).up, x)
    with on.module(f"{BLOCK}.ff"):
        return up, widened, *activation.forward(on, plan, widened)
