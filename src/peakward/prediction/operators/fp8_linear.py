"""A linear layer whose products are of fp8 numbers (`lab/levers/fp8.py`), in bf16 around them."""

from peakward.prediction.operators.linear import Linear, rows
from peakward.prediction.operators.tape import E4M3, E5M2, FLOAT, Tape, of_type, tensor, transposed
from peakward.records.op_graph import Operand


def forward(tape: Tape, layer: Linear, x: Operand) -> Operand:
    """x (…, n_in) → (…, n_out) in the compute type."""
    y = tensor(layer.compute, *x.shape[:-1], layer.n_out)
    until_saved(tape, layer, x)
    if layer.bias:
        with tape.module(layer.module):
            tape.pointwise("add", y, tape.cast(layer.bias_vector, layer.compute))
    return y


def until_saved(tape: Tape, layer: Linear, x: Operand) -> None:
    """As far as torch recomputes it: a function of our own is run whole, its bias is not added."""
    with tape.module(layer.module):
        a = _quantised(tape, rows(tape.cast(x, layer.compute)), E4M3)
        b = _quantised(tape, layer.weight, E4M3)
        _product(tape, a, transposed(b), layer.compute)


def backward(tape: Tape, layer: Linear, gradient: Operand, x_dtype: str) -> Operand:
    """Gradient of y (…, n_out) in the compute type → of x (…, n_in) in `x_dtype`; also of both
    parameters, in the type that they are kept in."""
    x = tensor(layer.compute, *gradient.shape[:-1], layer.n_in)
    with tape.module(layer.module):
        if layer.bias:
            ones = (1,) * (len(gradient.shape) - 1)
            tape.reduced("sum", gradient, *ones, layer.n_out)
            tape.cast(of_type(layer.bias_vector, layer.compute), layer.stored)
        g = _quantised(tape, rows(gradient), E5M2)
        w = _quantised(tape, layer.weight, E4M3)
        a = _quantised(tape, rows(x), E4M3)
        for each in (w, g, a):  # cuBLAS takes a row-major matrix times a column-major one alone.
            tape.copied(transposed(each))
        _product(tape, g, w, layer.compute)
        tape.cast(_product(tape, transposed(g), a, layer.compute), layer.stored)
        return tape.cast(x, x_dtype)


def _quantised(tape: Tape, x: Operand, dtype: str) -> Operand:
    """x over the largest of its magnitudes, in fp8."""
    largest = tape.cast(tape.reduced("amax", tape.pointwise("abs", x)), FLOAT)
    scale = tape.pointwise("div", tape.pointwise("clamp", largest))
    scaled = tape.pointwise("div", tape.cast(x, FLOAT), scale)
    return tape.cast(tape.pointwise("clamp", scaled), dtype)


def _product(tape: Tape, a: Operand, b: Operand, dtype: str) -> Operand:
    """a (m, k) times b (k, n), each with its scale → (m, n) in `dtype`."""
    result = tensor(dtype, a.shape[0], b.shape[1])
    inputs = (a, b, tensor(FLOAT), tensor(FLOAT))
    tape.call("_scaled_mm", inputs, (result,), flops=2 * a.shape[0] * a.shape[1] * b.shape[1])
    return result
