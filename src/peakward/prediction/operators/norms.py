"""RMSNorm and LayerNorm over the residual stream, as torch's CPU and as CUDA carries them out.

RMSNorm is taken apart on a CPU and one operator on CUDA; LayerNorm is one on both. Peakward's own are one
operator each way, which makes the residual's sum too where both of its terms are of one type.
"""

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, Tape, tensor
from peakward.records.op_graph import Operand


def forward(tape: Tape, plan: Plan, *, sums: bool = False) -> Operand:
    """x (batch, seq, d_model) → the same, over the last dimension; in Peakward's kernel of a sum, which
    is a result too."""
    if plan.norm == "fused":
        _own(tape, plan, sums=sums)
    elif plan.shape.norm == "layernorm":
        _layer_norm(tape, plan)
    elif plan.device == "cuda":
        _fused_rms_norm(tape, plan)
    else:
        _rms_norm_in_parts(tape, plan)
    return plan.hidden


def backward(tape: Tape, plan: Plan, *, sums: bool = False) -> Operand:
    """Gradient of y → of x, both (batch, seq, d_model) in x's type; also of the parameters. Of a norm that
    summed, the sum's own gradient is added in the same kernel."""
    if plan.norm == "fused":
        _own_backward(tape, plan, sums=sums)
    elif plan.shape.norm == "layernorm":
        _layer_norm_backward(tape, plan)
    elif plan.device == "cuda":
        _fused_rms_norm_backward(tape, plan)
    else:
        _rms_norm_in_parts_backward(tape, plan)
    return plan.hidden


def _own(tape: Tape, plan: Plan, *, sums: bool) -> None:
    x = plan.hidden
    total = x if sums else tensor(plan.stored, 0)
    inputs = (x, x) if sums else (x,)
    tape.own(_own_name(plan), (*inputs, *_parameters(plan)), (x, total, *_own_rows(plan)))


def _own_backward(tape: Tape, plan: Plan, *, sums: bool) -> None:
    x, parameters = plan.hidden, _parameters(plan)
    gradients = (x, x) if sums else (x,)
    inputs = (*gradients, x, *parameters, *_own_rows(plan))
    tape.own(f"{_own_name(plan)}_backward", inputs, (x, *parameters))


def _own_name(plan: Plan) -> str:
    return "add_layer_norm" if plan.shape.norm == "layernorm" else "add_rms_norm"


def _parameters(plan: Plan) -> tuple[Operand, ...]:
    return (_weight(plan),) * (2 if plan.shape.norm == "layernorm" else 1)


def _own_rows(plan: Plan) -> tuple[Operand, ...]:
    """The reciprocal deviation of each position, and in LayerNorm before it the mean."""
    return (tensor(FLOAT, plan.tokens),) * (2 if plan.shape.norm == "layernorm" else 1)


def _layer_norm(tape: Tape, plan: Plan) -> None:
    x, weight, statistics = plan.hidden, _weight(plan), _layer_statistics(plan)
    tape.call("native_layer_norm", (x, weight, weight), (x, statistics, statistics))


def _layer_norm_backward(tape: Tape, plan: Plan) -> None:
    x, weight, statistics = plan.hidden, _weight(plan), _layer_statistics(plan)
    inputs = (x, x, statistics, statistics, weight, weight)
    tape.call("native_layer_norm_backward", inputs, (x, weight, weight))


def _layer_statistics(plan: Plan) -> Operand:
    """Mean or reciprocal deviation of each position: in x's type on a CPU, in fp32 on CUDA."""
    return _of_rows(plan, FLOAT if plan.device == "cuda" else plan.stored)


def _fused_rms_norm(tape: Tape, plan: Plan) -> None:
    x = plan.hidden
    tape.call("_fused_rms_norm", (x, _weight(plan)), (x, _of_rows(plan, FLOAT)))


def _fused_rms_norm_backward(tape: Tape, plan: Plan) -> None:
    x, weight = plan.hidden, _weight(plan)
    inputs = (x, x, _of_rows(plan, FLOAT), weight)
    tape.call("_fused_rms_norm_backward", inputs, (x, weight))


def _rms_norm_in_parts(tape: Tape, plan: Plan) -> None:
    wide = tape.cast(plan.hidden, FLOAT)
    tape.pointwise("pow", wide)
    mean = tape.reduced("mean", wide, *_of_rows(plan, FLOAT).shape)
    tape.changed("add_", mean)
    scale = tape.pointwise("rsqrt", mean)
    normalised = tape.pointwise("mul", wide, scale)
    tape.cast(tape.pointwise("mul", normalised, _weight(plan)), plan.stored)


def _rms_norm_in_parts_backward(tape: Tape, plan: Plan) -> None:
    """Of w·(x·s), s = (mean(x²) + eps)^-½: each product and power by its own rule."""
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
