"""A linear layer whose products are of fp8 numbers (`lab/levers/precision.py`), in bf16 around them.

What it holds in memory is not known: it is written down for time alone.
"""

from peakward.prediction.operators.linear import Linear, SavedLinear, rows
from peakward.prediction.operators.tape import E4M3, E5M2, FLOAT, Tape, of_type, tensor, transposed
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand


def forward(on: Writer, layer: Linear, x: Value) -> tuple[SavedLinear, Value]:
    """x (…, n_in) → (…, n_out) in the compute type."""
    y = tensor(layer.compute, *x.operand.shape[:-1], layer.n_out)
    saved = until_saved(on, layer, x)
    if layer.bias:
        with on.module(layer.module):
            on.pointwise("add", Value(y), on.cast(Value(layer.bias_vector), layer.compute))
    return saved, Value(y)


def until_saved(on: Writer, layer: Linear, x: Value) -> SavedLinear:
    """As far as torch recomputes it: a function of our own is run whole, its bias is not added."""
    if on.tape is not None:
        _until_saved(on.tape, layer, x.operand)
    return SavedLinear(layer, x, ())


def backward(on: Writer, saved: SavedLinear, gradient: Value, x_dtype: str) -> Value:
    """Gradient of y (…, n_out) in the compute type → of x (…, n_in) in `x_dtype`; also of both
    parameters, in the type that they are kept in."""
    if on.tape is not None:
        _backward(on.tape, saved.layer, gradient.operand, x_dtype)
    return Value(tensor(x_dtype, *gradient.operand.shape[:-1], saved.layer.n_in))


def _until_saved(tape: Tape, layer: Linear, x: Operand) -> None:
    with tape.module(layer.module):
        a = _quantised(tape, rows(Value(tape.cast(x, layer.compute))).operand, E4M3)
        b = _quantised(tape, layer.weight, E4M3)
        _product(tape, a, transposed(b), layer.compute)


def _backward(tape: Tape, layer: Linear, gradient: Operand, x_dtype: str) -> None:
    x = tensor(layer.compute, *gradient.shape[:-1], layer.n_in)
    with tape.module(layer.module):
        if layer.bias:
            ones = (1,) * (len(gradient.shape) - 1)
            tape.reduced("sum", gradient, *ones, layer.n_out)
            tape.cast(of_type(layer.bias_vector, layer.compute), layer.stored)
        g = _quantised(tape, rows(Value(gradient)).operand, E5M2)
        w = _quantised(tape, layer.weight, E4M3)
        a = _quantised(tape, rows(Value(x)).operand, E4M3)
        for each in (w, g, a):  # cuBLAS takes a row-major matrix times a column-major one alone.
            tape.copied(transposed(each))
        _product(tape, g, w, layer.compute)
        tape.cast(_product(tape, transposed(g), a, layer.compute), layer.stored)
        tape.cast(x, x_dtype)


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
