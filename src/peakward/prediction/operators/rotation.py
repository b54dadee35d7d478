"""RoPE's turn of queries or keys: element i with element i + head_dim/2.

Peakward's own is one pass over queries, keys and values where they lie side by side, in place where no
gradient is asked for.
"""

from peakward.prediction.operators.tape import Tape, of_type, tensor
from peakward.records.op_graph import Operand


def forward(tape: Tape, x: Operand, angle_dtype: str) -> Operand:
    """x (batch, heads, seq, head_dim) → the same, turned by angles whose cosines and sines are
    (seq, head_dim / 2)."""
    half, angle = _half(x), _angle(x, angle_dtype)
    for combine in ("sub", "add"):
        first = tape.pointwise("mul", half, angle)
        second = tape.pointwise("mul", half, angle)
        tape.pointwise(combine, first, second)
    turned = tape.joined(first, second, along=3)
    return tape.cast(turned, x.dtype)


def backward(tape: Tape, gradient: Operand, angle_dtype: str) -> Operand:
    """Gradient of the turned → of x, both in x's type."""
    half, angle = _half(gradient), _angle(gradient, angle_dtype)
    wide = of_type(half, angle_dtype)
    tape.cast(gradient, angle_dtype)
    tape.pointwise("neg", wide)  # What was subtracted.
    for _ in ("low", "high"):
        for _ in ("by the cosines", "by the sines"):
            tape.cast(tape.pointwise("mul", wide, angle), half.dtype)
        tape.pointwise("add", half, half)
    return tape.joined(half, half, along=3)


def own_forward(tape: Tape, packed: Operand, angle_dtype: str, *, in_place: bool) -> None:
    """Queries, keys and values (batch, heads, seq, head_dim) → the same, the first two turned."""
    angle = _angle(packed, angle_dtype)
    tape.own("rope_" if in_place else "rope", (packed, angle, angle), (packed,))


def own_backward(tape: Tape, packed: Operand, angle_dtype: str) -> None:
    """Gradient of all three → the same before the turn."""
    own_forward(tape, packed, angle_dtype, in_place=False)


def _half(x: Operand) -> Operand:
    *outer, size = x.shape
    return tensor(x.dtype, *outer, size // 2)


def _angle(x: Operand, dtype: str) -> Operand:
    return tensor(dtype, x.shape[2], x.shape[3] // 2)
