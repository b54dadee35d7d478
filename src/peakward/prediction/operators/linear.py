"""A linear layer: y = x·Wᵀ + b over (batch, seq, features), its rows as one matrix."""

import math
from typing import NamedTuple

from peakward.prediction.operators.tape import Tape, of_type, tensor, transposed
from peakward.records.case import StoredWeights
from peakward.records.op_graph import Operand


class Linear(NamedTuple):
    """One layer and the types that it computes in and keeps its parameters in."""

    module: str
    n_in: int
    n_out: int
    bias: bool
    stored: str
    compute: str
    weights: StoredWeights = "dense"

    @property
    def weight(self) -> Operand:
        """(n_out, n_in)."""
        return tensor(self.stored, self.n_out, self.n_in)

    @property
    def bias_vector(self) -> Operand:
        """(n_out,)."""
        return tensor(self.stored, self.n_out)


def forward(tape: Tape, layer: Linear, x: Operand) -> Operand:
    """x (…, n_in) → (…, n_out) in the compute type; autocast casts what is not of it."""
    bias, weight, flat = casts(tape, layer, x)
    with tape.module(layer.module):
        if bias is None:
            tape.product("mm", flat, transposed(weight))
        else:
            tape.product("addmm", flat, transposed(weight), bias=bias)
    return tensor(layer.compute, *x.shape[:-1], layer.n_out)


def casts(tape: Tape, layer: Linear, x: Operand) -> tuple[Operand | None, Operand, Operand]:
    """What comes before the product: bias, weight and x as rows, in the compute type."""
    with tape.module(layer.module):
        bias = tape.cast(layer.bias_vector, layer.compute) if layer.bias else None
        weight = tape.cast(layer.weight, layer.compute)
        flat = rows(tape.cast(x, layer.compute))
    return bias, weight, flat


def backward(tape: Tape, layer: Linear, gradient: Operand, x_dtype: str) -> Operand:
    """Gradient of y (…, n_out) in the compute type → of x (…, n_in) in `x_dtype`; also of both
    parameters, in the type that they are kept in."""
    flat = rows(gradient)
    weight = of_type(layer.weight, layer.compute)
    x = tensor(layer.compute, *gradient.shape[:-1], layer.n_in)
    with tape.module(layer.module):
        tape.cast(tape.product("mm", transposed(flat), rows(x)), layer.stored)
        tape.product("mm", flat, weight)
        if layer.bias:
            tape.reduced("sum", flat, 1, layer.n_out)
            tape.cast(of_type(layer.bias_vector, layer.compute), layer.stored)
        return tape.cast(x, x_dtype)


def rows(x: Operand) -> Operand:
    """x (…, features) as one matrix."""
    return tensor(x.dtype, math.prod(x.shape[:-1]), x.shape[-1])
