"""A linear layer in compiled code: torch's own products, and the casts that autocast asks for."""

from peakward.prediction.operators.linear import Linear, rows
from peakward.prediction.operators.tape import Tape, of_type, tensor, transposed
from peakward.prediction.operators.writer import Value
from peakward.records.op_graph import Operand


def forward(tape: Tape, layer: Linear, x: Operand) -> Operand:
    """x (…, n_in), already in the compute type → (…, n_out) in it."""
    with tape.module(layer.module):
        weight = cast(tape, layer.weight, layer.compute)
        tape.product("mm", _rows(x), transposed(weight))
    return tensor(layer.compute, *x.shape[:-1], layer.n_out)


def backward(tape: Tape, layer: Linear, gradient: Operand) -> Operand:
    """Gradient of y (…, n_out) → of x (…, n_in), both in the compute type; also of the weight, in
    the type that it is kept in. The cast weight is kept from the forward pass."""
    flat = _rows(gradient)
    x = tensor(layer.compute, *gradient.shape[:-1], layer.n_in)
    with tape.module(layer.module):
        cast(tape, tape.product("mm", transposed(flat), _rows(x)), layer.stored)
        tape.product("mm", flat, of_type(layer.weight, layer.compute))
    return x


def cast(tape: Tape, x: Operand, dtype: str) -> Operand:
    """x in that type, by a kernel of its own where it is of another."""
    result = of_type(x, dtype)
    if result != x:
        tape.fused("pointwise", ("_to_copy",), (x,), (result,))
    return result


def _rows(x: Operand) -> Operand:
    return rows(Value(x)).operand
