"""A block's feed-forward network, where it has one: two products around an activation."""

from peakward.prediction.operators import activation
from peakward.prediction.operators.layers import BLOCK, layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.products import products
from peakward.prediction.operators.tape import Tape, of_type, tensor
from peakward.records.op_graph import Operand


def forward(tape: Tape, plan: Plan) -> Operand:
    """The normed residual stream → what is added to it."""
    return products(plan).forward(tape, layers(plan).down, _until_last_product(tape, plan))


def until_saved(tape: Tape, plan: Plan) -> None:
    """As far as torch recomputes it."""
    products(plan).until_saved(tape, layers(plan).down, _until_last_product(tape, plan))


def result(plan: Plan) -> Operand:
    """What is added: (batch, seq, d_model) in the compute type."""
    return of_type(plan.hidden, plan.compute)


def backward(tape: Tape, plan: Plan, gradient: Operand) -> None:
    """Gradient of the result → of the normed residual stream; also of all parameters."""
    layer, linear = layers(plan), products(plan)
    linear.backward(tape, layer.down, gradient, plan.compute)
    with tape.module(f"{BLOCK}.ff"):
        widened = activation.backward(tape, plan, _activations(plan))
    linear.backward(tape, layer.up, widened, plan.stored)


def _until_last_product(tape: Tape, plan: Plan) -> Operand:
    products(plan).forward(tape, layers(plan).up, plan.hidden)
    with tape.module(f"{BLOCK}.ff"):
        return activation.forward(tape, plan, _activations(plan))


def _activations(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.seq, plan.shape.d_ff)
