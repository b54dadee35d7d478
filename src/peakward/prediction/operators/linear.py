"""A linear layer: y = x·Wᵀ + b over (batch, seq, features), its rows as one matrix."""

import math
from typing import NamedTuple

from peakward.levers.weights import Quantised
from peakward.prediction.memory.timeline import Category
from peakward.prediction.operators.tape import of_type, tensor, transposed
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand


class Linear(NamedTuple):
    """One layer and the types that it computes in and keeps its parameters in."""

    module: str
    n_in: int
    n_out: int
    bias: bool
    stored: str
    compute: str
    quantised: Quantised | None = None

    @property
    def weight(self) -> Operand:
        """(n_out, n_in)."""
        return tensor(self.stored, self.n_out, self.n_in)

    @property
    def bias_vector(self) -> Operand:
        """(n_out,)."""
        return tensor(self.stored, self.n_out)


class SavedLinear(NamedTuple):
    """Tensors that the product keeps: its input, and weight and bias where they were cast."""

    layer: Linear
    x: Value
    parameters: tuple[Value, ...]
    """The weight, and the bias if there is one."""


def forward(
    on: Writer, layer: Linear, x: Value, *, category: Category = "temporaries"
) -> tuple[SavedLinear, Value]:
    """x (…, n_in) → (…, n_out) in the compute type; autocast casts what is not of it."""
    saved = casts(on, layer, x)
    weight, *bias = saved.parameters
    by_row = transposed(weight.operand)
    with on.module(layer.module):
        y = on.product(
            "addmm" if bias else "mm",
            rows(saved.x),
            weight.viewed(by_row),
            bias=bias[0] if bias else None,
            category=category,
            dear=True,
        )
    return saved, y.viewed(tensor(layer.compute, *x.operand.shape[:-1], layer.n_out))


def casts(on: Writer, layer: Linear, x: Value) -> SavedLinear:
    """Casts before the product: weight, bias and x in the compute type."""
    parameters = (layer.weight, layer.bias_vector) if layer.bias else (layer.weight,)
    with on.module(layer.module):
        cast = tuple(
            [on.cast(Value(each), layer.compute, category="weight_casts") for each in parameters]
        )
        return SavedLinear(layer, on.cast(x, layer.compute), cast)


def backward(on: Writer, saved: SavedLinear, gradient: Value, x_dtype: str) -> Value:
    """Gradient of y (…, n_out) in the compute type → of x (…, n_in) in `x_dtype`; also of both
    parameters, in the type that they are kept in."""
    layer, flat = saved.layer, rows(gradient)
    weight, bias = of_type(layer.weight, layer.compute), of_type(layer.bias_vector, layer.compute)
    kept = (*on.saved(saved.x), *saved.parameters)
    done = layer.compute == layer.stored  # Else both wait for their casts.
    with on.module(layer.module):
        across = flat.viewed(transposed(flat.operand))
        of_weight = on.product("mm", across, rows(saved.x), held=kept, is_gradient=done)
        x = on.product("mm", flat, saved.parameters[0].viewed(weight), held=kept)
        x = x.viewed(tensor(layer.compute, *gradient.operand.shape[:-1], layer.n_in))
        parameters = [of_weight]
        if layer.bias:
            of_bias = on.reduced("sum", flat, 1, layer.n_out, is_gradient=done)
            parameters.append(of_bias.viewed(bias))
        x = on.cast(x, x_dtype)
        on.use(*parameters)
        for each in parameters:
            on.finished(each, layer.stored)
    return x


def rows(x: Value) -> Value:
    """x (…, features) as one matrix."""
    shape = x.operand.shape
    return x.viewed(tensor(x.operand.dtype, math.prod(shape[:-1]), shape[-1]))
