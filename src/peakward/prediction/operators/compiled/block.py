"""One block in compiled code: torch's products and attention, Peakward's operators, and between them what
Inductor fuses."""

from peakward.prediction.operators import activation
from peakward.prediction.operators.compiled import attention, linear
from peakward.prediction.operators.compiled.stream import stream
from peakward.prediction.operators.layers import BLOCK, layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape, of_type, tensor
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand


def forward(tape: Tape, plan: Plan) -> None:
    """The whole block."""
    layer, norms = layers(plan), stream(plan)
    with tape.module(f"{BLOCK}.attention_norm"):
        y = norms.forward(tape, plan)
    linear.forward(tape, layer.qkv, y)
    with tape.module(f"{BLOCK}.attention"):
        mixed = attention.forward(tape, plan)
    attended = linear.forward(tape, layer.out, mixed)
    with tape.module(BLOCK):
        y = norms.forward(tape, plan, attended)
    linear.forward(tape, layer.up, y)
    with tape.module(f"{BLOCK}.ff"):
        gated = _activated(tape, plan)
    added = linear.forward(tape, layer.down, gated)
    with tape.module(BLOCK):
        norms.behind(tape, plan, attended, added)


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the residual stream behind the block → before it; also of all parameters."""
    layer, norms = layers(plan), stream(plan)
    narrow = of_type(plan.hidden, plan.compute)
    with tape.module(BLOCK):
        gradient = linear.cast(tape, plan.hidden, plan.compute)
    linear.backward(tape, layer.down, gradient)
    with tape.module(f"{BLOCK}.ff"):
        both = _activated_backward(tape, plan)
    linear.backward(tape, layer.up, both)
    with tape.module(BLOCK):
        norms.between(tape, plan)
    linear.backward(tape, layer.out, narrow)
    with tape.module(f"{BLOCK}.attention"):
        packed = attention.backward(tape, plan)
    linear.backward(tape, layer.qkv, packed)
    with tape.module(BLOCK):
        norms.before(tape, plan)


def _activated(tape: Tape, plan: Plan) -> Operand:
    """Result of the first product → input of the second."""
    gated, both = _activations(plan)
    if plan.gating is not None:
        return activation.forward(Writer(tape), plan, Value(both))[1].operand
    tape.fused("pointwise", ("mul", "silu"), (both,), (gated,))
    return gated


def _activated_backward(tape: Tape, plan: Plan) -> Operand:
    """Gradient of what goes into the second product → of what the first gave."""
    gated, both = _activations(plan)
    if plan.gating is not None:
        saved, product = activation.forward(Writer(), plan, Value(both))
        return activation.backward(Writer(tape), plan, saved, product).operand
    names = ("cat", "mul", "silu", "silu_backward")
    tape.fused("pointwise", names, (gated, both), (both,))
    return both


def _activations(plan: Plan) -> tuple[Operand, Operand]:
    """The gated ones, and both halves before."""
    outer = (plan.compute, plan.batch, plan.seq)
    return tensor(*outer, plan.shape.d_ff), tensor(*outer, 2 * plan.shape.d_ff)
