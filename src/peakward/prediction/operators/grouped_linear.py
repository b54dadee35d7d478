"""A linear layer for each group of rows (`kernels/ops/grouped_matmul`): one kernel, or a loop.

How many rows a group has is in the values; here groups are as equal as whole rows allow. One
kernel's shapes and FLOPs do not depend on it, nor do the FLOPs of the loop. Of fewer rows than
groups each goes to a group of its own, and the weights of the rest are not read.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from peakward.hardware.devices import WIDTHS
from peakward.prediction.operators.tape import INT32, of_type, tensor, transposed
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand


class GroupedLinear(NamedTuple):
    """The layers of all groups, without biases, and the types of their products and parameters."""

    module: str
    n_groups: int
    n_in: int
    n_out: int
    stored: str
    compute: str
    has_kernel: bool
    """torch has one kernel for all groups in the compute type on this device."""
    reads_ends: bool
    """Where it has none the ends of the groups are copied from the device to the host."""

    @property
    def weight(self) -> Operand:
        """(groups, n_out, n_in)."""
        return tensor(self.stored, self.n_groups, self.n_out, self.n_in)

    @property
    def ends(self) -> Operand:
        """(groups,): the row after each group's last."""
        return tensor(INT32, self.n_groups)

    @property
    def in_one_kernel(self) -> bool:
        """Whether the widths suit it too (`api.in_one_kernel`)."""
        return self.has_kernel and not (self.n_in % WIDTHS or self.n_out % WIDTHS)


def group_sizes(n_rows: int, n_groups: int) -> list[tuple[int, int]]:
    """The rows that a group has, and how many groups have so many: the smaller size first."""
    size, n_larger = divmod(n_rows, n_groups)
    return [(size, n_groups - n_larger), *([(size + 1, n_larger)] if n_larger else [])]


class SavedGroups(NamedTuple):
    """Tensors that the products keep: their input, the weights, and in one kernel the ends of the groups."""

    layer: GroupedLinear
    x: Value
    weight: Value
    ends: tuple[Value, ...]


def forward(on: Writer, layer: GroupedLinear, x: Value, ends: Value) -> tuple[SavedGroups, Value]:
    """x (n, n_in) → (n, n_out) in the compute type; what is not of it is cast."""
    y = tensor(layer.compute, x.operand.shape[0], layer.n_out)
    with on.module(layer.module):
        x = on.cast(x, layer.compute)
        weight = on.cast(Value(layer.weight), layer.compute, held=(x,), category="weight_casts")
        if layer.in_one_kernel:
            turned = weight.viewed(transposed(weight.operand))
            made = _grouped(on, layer, x, turned, y=y, ends=ends, dear=True)
            return SavedGroups(layer, x, weight, (ends,)), made
        if layer.reads_ends:
            on.timed("_to_copy", ends, output=layer.ends)
        parts = []
        for n_rows in _each(on, layer, x):
            rows = x.viewed(tensor(layer.compute, n_rows, layer.n_in))
            parts.append(on.product("mm", rows, _matrix(weight, turned=True), dear=True))
        alike = [
            Operand(shape=(n_rows, layer.n_out), dtype=y.dtype, count=n_groups)
            for n_rows, n_groups in group_sizes(x.operand.shape[0], layer.n_groups)
        ]
        (made,) = on.call("cat", _listed(on, parts, alike), (y,))
    return SavedGroups(layer, x, weight, ()), made


def backward(on: Writer, saved: SavedGroups, gradient: Value, x_dtype: str) -> Value:
    """Gradient of y (n, n_out) in the compute type → of x (n, n_in) in `x_dtype`; also of all
    weights, in the type that they are kept in."""
    layer = saved.layer
    kept = (*on.saved(saved.x, *saved.ends), saved.weight)
    with on.module(layer.module):
        run = _in_one_kernel if layer.in_one_kernel else _in_a_loop
        return on.cast(run(on, saved, gradient, kept), x_dtype)


def _in_one_kernel(
    on: Writer, saved: SavedGroups, gradient: Value, kept: tuple[Value, ...]
) -> Value:
    layer, (ends,) = saved.layer, saved.ends
    weight, x = of_type(layer.weight, layer.compute), saved.x.operand
    done = layer.compute == layer.stored
    across = gradient.viewed(transposed(gradient.operand))
    into = _grouped(on, layer, across, saved.x, y=weight, ends=ends, held=kept, is_gradient=done)
    made = _grouped(on, layer, gradient, saved.weight, y=x, ends=ends, held=kept)
    if not done:
        on.finished(into, layer.stored, held=(made,))
    return made


def _grouped(
    on: Writer,
    layer: GroupedLinear,
    a: Value,
    b: Value,
    *,
    y: Operand,
    ends: Value,
    held: tuple[Value, ...] = (),
    dear: bool = False,
    is_gradient: bool = False,
) -> Value:
    """Either side of the product may be what is cut into groups, or both."""
    left, right = a.operand, b.operand
    n_rows = left.shape[0] if len(right.shape) == 3 else left.shape[1]
    weights = right.n_bytes * min(n_rows, layer.n_groups) // layer.n_groups
    read = weights if len(right.shape) == 3 else right.n_bytes
    return on.call(
        "_grouped_mm",
        (a, b, ends.viewed(layer.ends)),
        () if is_gradient else (y,),
        flops=2 * n_rows * layer.n_in * layer.n_out,
        bytes_read=left.n_bytes + layer.ends.n_bytes + read,
        held=held,
        dear=dear,
        parameters=(y,) if is_gradient else (),
    )[0]


def _in_a_loop(on: Writer, saved: SavedGroups, gradient: Value, kept: tuple[Value, ...]) -> Value:
    """The last group first. Each one's rows go into a tensor of all, the first of which the others
    are added to; the weights' gradients wait for one another, to be stacked."""
    layer, dtype = saved.layer, saved.layer.compute
    every = saved.x.operand
    weights: list[Value] = []
    whole: Value | None = None
    for n_rows in _each(on, layer, saved.x, backwards=True):
        rows = gradient.viewed(tensor(dtype, n_rows, layer.n_out))
        across = rows.viewed(transposed(rows.operand))
        x = saved.x.viewed(tensor(dtype, n_rows, layer.n_in))
        weights.append(on.product("mm", across, x, held=kept))
        of_group = on.product("mm", rows, _matrix(saved.weight, turned=False), held=kept)
        (made,) = on.call("slice_backward", (of_group,), (every,))
        whole = whole or made
        on.use(whole)
    assert whole is not None
    if on.tape is not None:
        with on.tape.times(layer.n_groups - 1):
            on.timed("add", whole, whole, output=every)
    stacked = of_type(layer.weight, dtype)
    done = dtype == layer.stored
    matrix = Operand(shape=stacked.shape[1:], dtype=dtype, count=layer.n_groups)
    (into,) = on.call(
        "stack",
        _listed(on, weights, [matrix]),
        () if done else (stacked,),
        held=(whole,),
        parameters=(stacked,) if done else (),
    )
    if not done:
        on.finished(into, layer.stored, held=(whole,))
    return whole


def _each(on: Writer, layer: GroupedLinear, x: Value, *, backwards: bool = False) -> Iterator[int]:
    """The rows of each group; for time once for each size that groups have."""
    sizes = group_sizes(x.operand.shape[0], layer.n_groups)
    for n_rows, n_groups in reversed(sizes) if backwards and on.tape is None else sizes:
        for _ in on.times(n_groups):
            yield n_rows


def _listed(on: Writer, parts: list[Value], alike: Iterable[Operand]) -> tuple[Value, ...]:
    """The parts as one list argument; for time those alike are one."""
    return tuple(parts) if on.tape is None else tuple(map(Value, alike))


def _matrix(weight: Value, *, turned: bool) -> Value:
    one = tensor(weight.operand.dtype, *weight.operand.shape[1:])
    return weight.viewed(transposed(one) if turned else one)
