"""A linear layer in compiled code: torch's products, and the casts that autocast asks for."""

from typing import NamedTuple

from peakward.prediction.memory.compiled.graph import Buffer, Graph
from peakward.prediction.memory.timeline import Category
from peakward.prediction.operators.linear import Linear
from peakward.prediction.operators.tape import of_type, tensor
from peakward.records.op_graph import Operand


class SavedLinear(NamedTuple):
    """Operands of the backward pass's products: the input, and the weight where it was cast."""

    layer: Linear
    x: Buffer
    weight: Buffer | None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All that is kept."""
        return (self.x,) if self.weight is None else (self.x, self.weight)


def forward(
    graph: Graph, layer: Linear, x: Buffer, rows: int, *, category: Category = "temporaries"
) -> tuple[SavedLinear, Buffer]:
    """x (rows, n_in) → (rows, n_out), both in the compute type."""
    weight = None
    if layer.compute != layer.stored:
        cast = of_type(layer.weight, layer.compute)
        weight = graph.fused(writes=cast, category="weight_casts")
    saved = SavedLinear(layer, x, weight)
    y = tensor(layer.compute, rows, layer.n_out)
    return saved, graph.product(*saved.buffers, writes=y, category=category)


def of_input(graph: Graph, saved: SavedLinear, gradient: Buffer, rows: int) -> Buffer:
    """Gradient of y → of x, both in the compute type."""
    weights = () if saved.weight is None else (saved.weight,)
    x = tensor(saved.layer.compute, rows, saved.layer.n_in)
    return graph.product(gradient, *weights, writes=x)


def of_weight(graph: Graph, saved: SavedLinear, gradient: Buffer) -> Buffer:
    """Gradient of y → of the weight, in the compute type."""
    return graph.product(gradient, saved.x, writes=of_type(saved.layer.weight, saved.layer.compute))


def widened(graph: Graph, saved: SavedLinear, gradient: Buffer) -> Buffer:
    """The weight's gradient in the type that the weight is kept in."""
    stored: Operand = saved.layer.weight
    if gradient.dtype == stored.dtype:
        return gradient
    return graph.fused(gradient, writes=stored)
