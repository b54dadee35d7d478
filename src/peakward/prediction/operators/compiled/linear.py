"""A linear layer in compiled code: torch's own products, and the casts that autocast asks for."""

from typing import NamedTuple

from peakward.prediction.memory.timeline import Category
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.prediction.operators.linear import Linear, rows
from peakward.prediction.operators.tape import of_type, tensor, transposed
from peakward.prediction.operators.writer import Value


class SavedLinear(NamedTuple):
    """Operands of the backward pass's products: the input, and the weight, kept where it was cast."""

    layer: Linear
    x: Value
    weight: Value


def forward(
    on: Kernels, layer: Linear, x: Value, *, category: Category = "temporaries"
) -> tuple[SavedLinear, Value]:
    """x (…, n_in), already in the compute type → (…, n_out) in it."""
    with on.module(layer.module):
        weight = on.narrowed(Value(layer.weight), layer.compute, category="weight_casts")
        by_row = weight.viewed(transposed(weight.operand))
        y = on.product("mm", rows(x), by_row, category=category)
    y = y.viewed(tensor(layer.compute, *x.operand.shape[:-1], layer.n_out))
    return SavedLinear(layer, x, weight), y


def of_input(on: Kernels, saved: SavedLinear, gradient: Value) -> Value:
    """Gradient of y (…, n_out) → of x (…, n_in), both in the compute type."""
    layer = saved.layer
    weight = saved.weight.viewed(of_type(layer.weight, layer.compute))
    with on.module(layer.module):
        x = on.product("mm", rows(gradient), weight)
    return x.viewed(tensor(layer.compute, *gradient.operand.shape[:-1], layer.n_in))


def of_weight(on: Kernels, saved: SavedLinear, gradient: Value) -> Value:
    """Gradient of y (…, n_out) → of the weight, in the compute type."""
    flat = rows(gradient)
    across = flat.viewed(transposed(flat.operand))
    with on.module(saved.layer.module):
        return on.product("mm", across, rows(saved.x))


def widened(on: Kernels, saved: SavedLinear, gradient: Value) -> Value:
    """The weight's gradient in the type that the weight is kept in."""
    with on.module(saved.layer.module):
        return on.narrowed(gradient, saved.layer.stored)
