"""RoPE's turn of queries or keys: element i with element i + head_dim/2.

Peakward's own is one pass over queries, keys and values where they lie side by side, in place where no
gradient is asked for.
"""

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


def own_forward(on: Writer, packed: Value, angle_dtype: str, *, in_place: bool) -> Value:
    """Queries, keys and values (batch, heads, seq, head_dim) → the same, the first two turned."""
    angle = _angle(packed.operand, angle_dtype)
    given = (packed, Value(angle), Value(angle))
    if not in_place:
        return on.call("peakward.rope", given, (packed.operand,))[0]
    if on.tape is not None:
        on.tape.own("rope_", (packed.operand, angle, angle), (packed.operand,))
    return packed


def own_backward(on: Writer, packed: Value, angle_dtype: str) -> Value:
    """Gradient of all three → the same before the turn."""
    return own_forward(on, packed, angle_dtype, in_place=False)


def _half(x: Operand) -> Operand:
    *outer, size = x.shape
    return tensor(x.dtype, *outer, size // 2)


def _angle(x: Operand, dtype: str) -> Operand:
    return tensor(dtype, x.shape[2], x.shape[3] // 2)
