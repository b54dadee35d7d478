"""A linear layer: under autocast with a cast copy of its weight, kept for the backward pass."""

from typing import NamedTuple

from peakward.prediction.memory.timeline import Category, Timeline
from peakward.prediction.operators.linear import Linear
from peakward.prediction.operators.quantised_linear import cut
from peakward.prediction.operators.tape import FLOAT, of_type
from peakward.records.op_graph import ITEM_BYTES


class SavedLinear(NamedTuple):
    """What the product keeps: its input, and the weight's copy where it was cast."""

    layer: Linear
    x: int
    weights: tuple[int, ...]


def forward(
    line: Timeline,
    layer: Linear,
    x: int,
    rows: int,
    x_type: str,
    *,
    category: Category = "temporaries",
) -> tuple[SavedLinear, int]:
    """x (rows, n_in) of `x_type` → (rows, n_out) in the compute type."""
    if layer.weights != "dense":
        return _of_quantised(line, layer, x, rows, x_type)
    saved = casts(line, layer, x, rows, x_type)
    size = rows * layer.n_out * ITEM_BYTES[layer.compute]
    (y,) = line.dear((size,), saved.x, *saved.weights, category=category)
    return saved, y


def _of_quantised(
    line: Timeline, layer: Linear, x: int, rows: int, x_type: str
) -> tuple[SavedLinear, int]:
    """The product, with sums in fp32 where programs share the inputs, and then the bias, cast."""
    size = ITEM_BYTES[layer.compute]
    if x_type != layer.compute:
        x = line.op(rows * layer.n_in * size, x)
    bits = 8 if layer.weights == "int8" else 4
    n_splits = cut(rows, layer.n_in, layer.n_out, bits=bits, compute=layer.compute).n_splits
    sums = (n_splits * rows * layer.n_out * ITEM_BYTES[FLOAT],) if n_splits > 1 else ()
    y, *_ = line.ops((rows * layer.n_out * size, *sums), x)
    if layer.bias:
        bias = (line.op(layer.n_out * size, y),) if layer.compute != layer.stored else ()
        y = line.op(rows * layer.n_out * size, y, *bias)
    return SavedLinear(layer, x, ()), y


def casts(line: Timeline, layer: Linear, x: int, rows: int, x_type: str) -> SavedLinear:
    """What comes before the product: weight, bias and x in the compute type."""
    weights: tuple[int, ...] = ()
    if layer.compute != layer.stored:
        copies = [of_type(layer.weight, layer.compute).n_bytes]
        copies += [of_type(layer.bias_vector, layer.compute).n_bytes] if layer.bias else []
        weights = tuple(line.op(n_bytes, category="weight_casts") for n_bytes in copies)
        line.use(*weights)
    if x_type != layer.compute:
        x = line.op(rows * layer.n_in * ITEM_BYTES[layer.compute], x)
    return SavedLinear(layer, x, weights)


def backward(line: Timeline, saved: SavedLinear, y: int, rows: int, x_type: str) -> int:
    """Gradient of y, in the compute type → of x, in `x_type`; also of weight and bias."""
    layer, size = saved.layer, ITEM_BYTES[saved.layer.compute]
    cast = layer.compute != layer.stored
    kept = (*line.saved(saved.x), *saved.weights)
    weight, bias = of_type(layer.weight, layer.compute), of_type(layer.bias_vector, layer.compute)
    if cast:
        into = [line.op(weight.n_bytes, y, *kept)]
        x = line.op(rows * layer.n_in * size, y, *kept)
        line.use(*into)
        into += [line.op(bias.n_bytes, y)] if layer.bias else []
    else:
        line.gradient(weight.n_bytes, y, *kept)
        x = line.op(rows * layer.n_in * size, y, *kept)
        if layer.bias:
            line.gradient(bias.n_bytes, y)
        into = []
    if x_type != layer.compute:
        x = line.op(rows * layer.n_in * ITEM_BYTES[x_type], x)
    line.use(*into)
    for each, stored in zip(into, (layer.weight, layer.bias_vector), strict=False):
        line.gradient(stored.n_bytes, each)
    return x
