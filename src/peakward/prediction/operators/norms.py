"""RMSNorm and LayerNorm over the residual stream, as torch's CPU and as CUDA carries them out.

RMSNorm is taken apart on a CPU and one operator on CUDA; LayerNorm is one on both. A lever's norm is as its
axis says, and makes the residual's sum too where both of its terms are of one type.
"""

from typing import NamedTuple

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, Tape, tensor
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand


class SavedNorm(NamedTuple):
    """The input, or the sum that was normalised, and the figures of each position."""

    x: Value
    statistics: tuple[Value, ...]


class Normed(NamedTuple):
    """The results of a norm."""

    saved: SavedNorm
    y: Value
    total: Value
    """The tensor that was normalised: the input, or the sum that a lever's norm made."""


def forward(on: Writer, plan: Plan, x: Value, *added: Value) -> Normed:
    """The residual stream (batch, seq, d_model), and what a lever's norm adds to it first → the same over
    the last dimension."""
    if plan.norm is not None:
        total, kept, y = plan.norm.forward(on, plan, x, *added)
        return Normed(SavedNorm(total, kept), y, total)
    if plan.device == "cpu" and plan.shape.norm == "rmsnorm":
        if on.tape is not None:
            _rms_norm_in_parts(on.tape, plan)
        return Normed(SavedNorm(x, ()), Value(plan.hidden), x)
    inputs = (x, *_parameters(on, plan))
    y, *statistics = on.call(_name(plan), inputs, (plan.hidden, *_statistics(plan)))
    return Normed(SavedNorm(x, tuple(statistics)), y, x)


def backward(on: Writer, plan: Plan, saved: SavedNorm, gradient: Value, *past: Value) -> Value:
    """Gradient of y, and of a sum that was a result too → of x, in x's type; also of the parameters."""
    if plan.norm is None and plan.device == "cpu" and plan.shape.norm == "rmsnorm":
        if on.tape is not None:
            _rms_norm_in_parts_backward(on.tape, plan)
        return Value(plan.hidden)
    kept = on.saved(saved.x, *saved.statistics)
    if plan.norm is not None:
        before: Value = plan.norm.backward(on, plan, kept, gradient, *past)
        return before
    parameters = _parameters(on, plan)
    return on.call(
        f"{_name(plan)}_backward",
        (gradient, *kept, *parameters),
        (plan.hidden,),
        parameters=[each.operand for each in parameters],
    )[0]


def _name(plan: Plan) -> str:
    return "native_layer_norm" if plan.shape.norm == "layernorm" else "_fused_rms_norm"


def _parameters(on: Writer, plan: Plan) -> tuple[Value, ...]:
    names = ("weight", "bias") if plan.shape.norm == "layernorm" else ("weight",)
    return tuple([on.parameter(_weight(plan), each) for each in names])


def _statistics(plan: Plan) -> tuple[Operand, ...]:
    """The reciprocal deviation of each position, and in LayerNorm before it the mean: in fp32, but in x's
    type on a CPU."""
    dtype = FLOAT if plan.device == "cuda" else plan.stored
    return (_of_rows(plan, dtype),) * (2 if plan.shape.norm == "layernorm" else 1)


def _rms_norm_in_parts(tape: Tape, plan: Plan) -> None:
    wide = tape.cast(plan.hidden, FLOAT)
    tape.pointwise("pow", wide)
    mean = tape.reduced("mean", wide, *_of_rows(plan, FLOAT).shape)
    tape.changed("add_", mean)
    scale = tape.pointwise("rsqrt", mean)
    normalised = tape.pointwise("mul", wide, scale)
    tape.cast(tape.pointwise("mul", normalised, _weight(plan)), plan.stored)


def _rms_norm_in_parts_backward(tape: Tape, plan: Plan) -> None:
    """The backward pass of w·(x·s), s = (mean(x²) + eps)^-½: each product and power by its own rule."""
    weight = _weight(plan)
    wide = tape.cast(plan.hidden, FLOAT)
    tape.pointwise("mul", wide, wide)
    into_weight = tape.reduced("sum", wide, 1, 1, wide.shape[-1])
    tape.cast(tensor(into_weight.dtype, *weight.shape), weight.dtype)
    tape.pointwise("mul", wide, weight)
    tape.pointwise("mul", wide, wide)
    into_scale = tape.reduced("sum", wide, *_of_rows(plan, FLOAT).shape)
    tape.pointwise("mul", wide, into_scale)
    cubed = tape.pointwise("pow", into_scale)
    tape.pointwise("mul", cubed)
    into_mean = tape.pointwise("mul", cubed, into_scale)
    tape.call("div", (wide,), (wide,), bytes_read=into_mean.n_bytes)  # It is expanded.
    tape.pointwise("pow", wide)
    tape.pointwise("mul", wide)
    tape.pointwise("mul", wide, wide)
    tape.pointwise("add", wide, wide)
    tape.cast(wide, plan.stored)


def _weight(plan: Plan) -> Operand:
    return tensor(plan.stored, plan.shape.d_model)


def _of_rows(plan: Plan, dtype: str) -> Operand:
    """A figure for each position."""
    return tensor(dtype, plan.batch, plan.seq, 1)
