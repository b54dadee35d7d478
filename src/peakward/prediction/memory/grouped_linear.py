"""A linear layer for each group of rows: in one kernel, or in a loop that holds each group's part."""

from typing import NamedTuple

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.grouped_linear import GroupedLinear, group_sizes
from peakward.prediction.operators.tape import of_type
from peakward.records.op_graph import ITEM_BYTES


class SavedGroups(NamedTuple):
    """What the products keep: their input, the weights' copy where they were cast, and in one kernel
    the ends of the groups."""

    layer: GroupedLinear
    x: int
    weights: tuple[int, ...]
    ends: tuple[int, ...]


class Visits(NamedTuple):
    """Rows in the groups whose ends are a tensor."""

    n: int
    ends: int


def forward(
    line: Timeline, layer: GroupedLinear, x: int, visits: Visits, x_type: str
) -> tuple[SavedGroups, int]:
    """x (n, n_in) of `x_type` → (n, n_out) in the compute type."""
    rows, ends = visits
    size = ITEM_BYTES[layer.compute]
    if x_type != layer.compute:
        x = line.op(rows * layer.n_in * size, x)
    weights: tuple[int, ...] = ()
    if layer.compute != layer.stored:
        n_bytes = of_type(layer.weight, layer.compute).n_bytes
        weights = (line.op(n_bytes, x, category="weight_casts"),)
    if layer.in_one_kernel:
        (y,) = line.dear((rows * layer.n_out * size,), x, ends, *weights)
        return SavedGroups(layer, x, weights, (ends,)), y
    parts: list[int] = []
    for n_rows in _rows(layer, rows):
        parts += line.dear((n_rows * layer.n_out * size,), x, *weights)
    return SavedGroups(layer, x, weights, ()), line.op(rows * layer.n_out * size, *parts)


def backward(line: Timeline, saved: SavedGroups, y: int, rows: int, x_type: str) -> int:
    """Gradient of y, in the compute type → of x, in `x_type`; also of all weights."""
    layer = saved.layer
    kept = (*line.saved(saved.x, *saved.ends), *saved.weights)
    x_bytes = rows * layer.n_in * ITEM_BYTES[layer.compute]
    if layer.in_one_kernel:
        x = _in_one_kernel(line, layer, x_bytes, y, *kept)
    else:
        x = _in_a_loop(line, layer, rows, y, *kept)
    if x_type != layer.compute:
        x = line.op(rows * layer.n_in * ITEM_BYTES[x_type], x)
    return x


def _in_one_kernel(line: Timeline, layer: GroupedLinear, x_bytes: int, *uses: int) -> int:
    if layer.compute == layer.stored:
        line.gradient(layer.weight.n_bytes, *uses)
        return line.op(x_bytes, *uses)
    weights = line.op(of_type(layer.weight, layer.compute).n_bytes, *uses)
    x = line.op(x_bytes, *uses)
    line.gradient(layer.weight.n_bytes, weights, x)
    return x


def _in_a_loop(line: Timeline, layer: GroupedLinear, rows: int, *uses: int) -> int:
    """The last group first. Each one's rows go into a tensor of all, the first of which the others
    are added to; the weights' gradients wait for one another, to be stacked."""
    row_bytes = layer.n_in * ITEM_BYTES[layer.compute]
    weights, whole = [], []
    for n_rows in reversed(_rows(layer, rows)):
        weights.append(line.op(layer.n_out * row_bytes, *uses))
        of_group = line.op(n_rows * row_bytes, *uses)
        whole.append(line.op(rows * row_bytes, of_group))
        line.use(whole[0])
    if layer.compute == layer.stored:
        line.gradient(layer.weight.n_bytes, *weights, whole[0])
    else:
        stacked = line.op(layer.n_groups * layer.n_out * row_bytes, *weights, whole[0])
        line.gradient(layer.weight.n_bytes, stacked, whole[0])
    return whole[0]


def _rows(layer: GroupedLinear, rows: int) -> list[int]:
    """Of each group; routing is taken to be balanced."""
    sizes = group_sizes(rows, layer.n_groups)
    return [n_rows for n_rows, n_groups in sizes for _ in range(n_groups)]
