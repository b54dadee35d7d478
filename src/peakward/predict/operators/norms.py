"""RMSNorm and LayerNorm, as torch's CPU carries them out: the one in parts, the other as one."""

from peakward.predict.operators.tape import FLOAT, Tape, tensor
from peakward.records.model_shape import Norm
from peakward.records.op_graph import Operand


def forward(tape: Tape, norm: Norm, x: Operand) -> Operand:
    """x (batch, seq, d_model) → the same, over the last dimension."""
    weight = tensor(x.dtype, x.shape[-1])
    if norm == "layernorm":
        tape.call("native_layer_norm", (x, weight, weight), (x, _rows(x), _rows(x)))
        return x
    wide = tape.cast(x, FLOAT)
    tape.pointwise("pow", wide)
    mean = tape.reduced("mean", wide, *_rows(x).shape)
    tape.changed("add_", mean)
    scale = tape.pointwise("rsqrt", mean)
    normalised = tape.pointwise("mul", wide, scale)
    return tape.cast(tape.pointwise("mul", normalised, weight), x.dtype)


def backward(tape: Tape, norm: Norm, gradient: Operand) -> Operand:
    """Gradient of y → of x, both (batch, seq, d_model) in x's type; also of the parameters."""
    weight = tensor(gradient.dtype, gradient.shape[-1])
    if norm == "rmsnorm":
        return _rms_backward(tape, gradient, weight)
    statistics = _rows(gradient)
    tape.call(
        "native_layer_norm_backward",
        (gradient, gradient, statistics, statistics, weight, weight),
        (gradient, weight, weight),
    )
    return gradient


def _rms_backward(tape: Tape, gradient: Operand, weight: Operand) -> Operand:
    """Of w·(x·s), s = (mean(x²) + eps)^-½: each product and power by its own rule."""
    wide = tape.cast(gradient, FLOAT)
    tape.pointwise("mul", wide, wide)
    into_weight = tape.reduced("sum", wide, 1, 1, wide.shape[-1])
    tape.cast(tensor(into_weight.dtype, *weight.shape), weight.dtype)
    tape.pointwise("mul", wide, weight)
    tape.pointwise("mul", wide, wide)
    into_scale = tape.reduced("sum", wide, *_rows(wide).shape)
    tape.pointwise("mul", wide, into_scale)
    cubed = tape.pointwise("pow", into_scale)
    tape.pointwise("mul", cubed)
    into_mean = tape.pointwise("mul", cubed, into_scale)
    tape.call("div", (wide,), (wide,), bytes_read=into_mean.n_bytes)  # It is expanded.
    tape.pointwise("pow", wide)
    tape.pointwise("mul", wide)
    tape.pointwise("mul", wide, wide)
    tape.pointwise("add", wide, wide)
    return tape.cast(wide, gradient.dtype)


def _rows(x: Operand) -> Operand:
    """A figure for each position, in the type of x."""
    return tensor(x.dtype, *x.shape[:-1], 1)
