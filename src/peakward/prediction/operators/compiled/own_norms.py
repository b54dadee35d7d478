"""A lever's norm in compiled code: one operator each way, and beside it the casts and sums that Inductor
fuses to torch's. With it the residual stream is written twice a block.
"""

from peakward.prediction.operators import norms
from peakward.prediction.operators.compiled.linear import cast
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape, of_type
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand


def forward(tape: Tape, plan: Plan, *added: Operand) -> Operand:
    """The residual stream, with what is added to it → normalised, in the compute type."""
    if added and not plan.sums_in_norm:
        tape.fused("pointwise", ("add",), (plan.hidden, *added), (plan.hidden,))
    sums = (Value(plan.hidden),) if added and plan.sums_in_norm else ()
    normed = norms.forward(Writer(tape), plan, Value(plan.hidden), *sums).y
    return cast(tape, normed.operand, plan.compute)


def behind(tape: Tape, plan: Plan, attended: Operand, added: Operand) -> None:
    """The stream with what the feed-forward network adds to it; `attended` it has already."""
    del attended
    tape.fused("pointwise", ("add",), (plan.hidden, added), (plan.hidden,))


def between(tape: Tape, plan: Plan) -> None:
    """Gradient of what a block's second norm gave → of the stream before it, in the compute type; also
    of the weight."""
    x = plan.hidden
    _backward(tape, plan, sums=plan.sums_in_norm)
    if not plan.sums_in_norm:
        tape.fused("pointwise", ("add", "_to_copy"), (x, x), (of_type(x, plan.compute),))


def before(tape: Tape, plan: Plan) -> None:
    """Gradient of what a block's first norm gave → of the block's input; also of the weight."""
    x = plan.hidden
    _backward(tape, plan, sums=False)
    # What went past the second norm, if its kernel did not add it, and what both gave.
    parts = (x, x) if plan.sums_in_norm else (x, x, x)
    tape.fused("pointwise", ("add",), parts, (x,))


def last(tape: Tape, plan: Plan) -> None:
    """Gradient of what the final norm gave → of the stream before it, and of the weight."""
    _backward(tape, plan, sums=False)


def _backward(tape: Tape, plan: Plan, *, sums: bool) -> None:
    cast(tape, of_type(plan.hidden, plan.compute), plan.stored)
    x = Value(plan.hidden)
    past = (x,) if sums else ()
    saved = norms.forward(Writer(), plan, x, *past).saved
    norms.backward(Writer(tape), plan, saved, x, *past)
