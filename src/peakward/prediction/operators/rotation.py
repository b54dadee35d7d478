"""RoPE's turn of queries or keys by torch's operators: element i with element i + head_dim/2."""

from peakward.prediction.operators.tape import tensor
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand


def forward(on: Writer, x: Value, angle_dtype: str) -> Value:
    """x (batch, heads, seq, head_dim) → the same, turned by angles whose cosines and sines are
    (seq, head_dim / 2). Nothing of it is kept."""
    half, angle = x.viewed(_half(x.operand)), Value(_angle(x.operand, angle_dtype))
    parts = []
    for combine in ("sub", "add"):
        first, second = on.pointwise("mul", half, angle), on.pointwise("mul", half, angle)
        parts.append(on.pointwise(combine, first, second))
    return on.cast(on.joined(*parts, along=3), x.operand.dtype)


def backward(on: Writer, gradient: Value, angle_dtype: str) -> Value:
    """Gradient of the turned → of x, both in x's type."""
    narrow, angle = gradient.operand.dtype, Value(_angle(gradient.operand, angle_dtype))
    wide = on.cast(gradient, angle_dtype)
    wide = wide.viewed(_half(wide.operand))

    def product(x: Value) -> Value:
        return on.cast(on.pointwise("mul", x, angle), narrow)

    low, high = product(wide), product(wide)
    minus = on.pointwise("neg", wide)  # What was subtracted.
    for each in (minus, wide):
        made = product(each)
        on.timed("add", made, made, output=made.operand)
    return on.joined(low, high, along=3)


def _half(x: Operand) -> Operand:
    *outer, size = x.shape
    return tensor(x.dtype, *outer, size // 2)


def _angle(x: Operand, dtype: str) -> Operand:
    return tensor(dtype, x.shape[2], x.shape[3] // 2)
