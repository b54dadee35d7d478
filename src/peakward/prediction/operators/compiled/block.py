"""One block in compiled code: torch's products and attention, and between them what Inductor fuses.

The residual stream is written once a block: what attention adds to it stays a sum of two tensors.
"""

from peakward.prediction.operators.compiled import attention, linear, norms
from peakward.prediction.operators.compiled.norms import Normed
from peakward.prediction.operators.layers import BLOCK, layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape, of_type, tensor
from peakward.records.op_graph import Operand


def forward(tape: Tape, plan: Plan) -> None:
    """The whole block."""
    layer, x = layers(plan), plan.hidden
    with tape.module(f"{BLOCK}.attention_norm"):
        y = norms.forward(tape, plan)
    linear.forward(tape, layer.qkv, y)
    with tape.module(f"{BLOCK}.attention"):
        mixed = attention.forward(tape, plan)
    attended = linear.forward(tape, layer.out, mixed)
    with tape.module(BLOCK):
        y = norms.forward(tape, plan, attended)
    linear.forward(tape, layer.up, y)
    gated, both = _activations(plan)
    with tape.module(f"{BLOCK}.ff"):
        tape.fused("pointwise", ("mul", "silu"), (both,), (gated,))
    added = linear.forward(tape, layer.down, gated)
    with tape.module(BLOCK):
        tape.fused("pointwise", ("add",), (x, attended, added), (x,))


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the residual stream behind the block → before it; also of all parameters."""
    layer, x, narrow = layers(plan), plan.hidden, of_type(plan.hidden, plan.compute)
    with tape.module(BLOCK):
        gradient = linear.cast(tape, x, plan.compute)
    linear.backward(tape, layer.down, gradient)
    gated, both = _activations(plan)
    with tape.module(f"{BLOCK}.ff"):
        names = ("cat", "mul", "silu", "silu_backward")
        tape.fused("pointwise", names, (gated, both), (both,))
    second = Normed(linear.backward(tape, layer.up, both), added=(narrow,))
    with tape.module(BLOCK):
        norms.backward(tape, plan, second, x, narrowed=narrow != x, summed=())
    linear.backward(tape, layer.out, narrow)
    with tape.module(f"{BLOCK}.attention"):
        packed = attention.backward(tape, plan)
    first = Normed(linear.backward(tape, layer.qkv, packed))
    with tape.module(BLOCK):
        _norms_backward(tape, plan, first, second)


def _norms_backward(tape: Tape, plan: Plan, first: Normed, second: Normed) -> None:
    """Of the block's input, and of both norms' weights."""
    mixes = norms.mixes(plan)
    if not mixes:
        norms.sum_parts(tape, plan, first, second)
    summed = (first, second) if mixes else ()
    norms.backward(tape, plan, first, plan.hidden, narrowed=False, summed=summed)
    for _ in (first, second):
        norms.finish(tape, plan, added=True)


def _activations(plan: Plan) -> tuple[Operand, Operand]:
    """The gated ones, and both halves before."""
    outer = (plan.compute, plan.batch, plan.seq)
    return tensor(*outer, plan.shape.d_ff), tensor(*outer, 2 * plan.shape.d_ff)
