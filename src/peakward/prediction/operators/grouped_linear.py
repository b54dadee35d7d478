"""A linear layer for each group of rows (`kernels/ops/grouped_matmul`): one kernel, or a loop.

How many rows a group has is in the values; here groups are as equal as whole rows allow. One
kernel's shapes and FLOPs do not depend on it, nor do the FLOPs of the loop. Of fewer rows than
groups each goes to a group of its own, and the weights of the rest are not read.
"""

from collections.abc import Iterator
from typing import NamedTuple

from peakward.hardware.grouped_products import WIDTHS
from peakward.prediction.operators.tape import INT32, Tape, of_type, tensor, transposed
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


def forward(tape: Tape, layer: GroupedLinear, x: Operand) -> Operand:
    """x (n, n_in) → (n, n_out) in the compute type; what is not of it is cast."""
    weight = casts(tape, layer, x)
    x, y = of_type(x, layer.compute), tensor(layer.compute, x.shape[0], layer.n_out)
    with tape.module(layer.module):
        if layer.in_one_kernel:
            _grouped(tape, layer, x, transposed(weight), y)
            return y
        if layer.reads_ends:
            tape.call("_to_copy", (layer.ends,), (layer.ends,))
        for n_rows in _each(tape, layer, x):
            tape.product("mm", tensor(x.dtype, n_rows, layer.n_in), _matrix(weight, turned=True))
        parts = tuple(
            Operand(shape=(n_rows, layer.n_out), dtype=y.dtype, count=n_groups)
            for n_rows, n_groups in group_sizes(x.shape[0], layer.n_groups)
        )
        tape.call("cat", parts, (y,))
    return y


def casts(tape: Tape, layer: GroupedLinear, x: Operand) -> Operand:
    """What comes before the products: x and all weights in the compute type; gives the weights."""
    with tape.module(layer.module):
        tape.cast(x, layer.compute)
        return tape.cast(layer.weight, layer.compute)


def backward(tape: Tape, layer: GroupedLinear, gradient: Operand, x_dtype: str) -> Operand:
    """Gradient of y (n, n_out) in the compute type → of x (n, n_in) in `x_dtype`; also of all
    weights, in the type that they are kept in."""
    weight = of_type(layer.weight, layer.compute)
    x = tensor(layer.compute, gradient.shape[0], layer.n_in)
    with tape.module(layer.module):
        if layer.in_one_kernel:
            _grouped(tape, layer, transposed(gradient), x, weight)
            _grouped(tape, layer, gradient, weight, x)
        else:
            _loop_backward(tape, layer, x, weight)
        tape.cast(weight, layer.stored)
        return tape.cast(x, x_dtype)


def _grouped(tape: Tape, layer: GroupedLinear, a: Operand, b: Operand, y: Operand) -> None:
    """Either side of the product may be what is cut into groups, or both."""
    n_rows = a.shape[0] if len(b.shape) == 3 else a.shape[1]
    weights = b.n_bytes * min(n_rows, layer.n_groups) // layer.n_groups
    read = a.n_bytes + layer.ends.n_bytes + (weights if len(b.shape) == 3 else b.n_bytes)
    flops = 2 * n_rows * layer.n_in * layer.n_out
    tape.call("_grouped_mm", (a, b, layer.ends), (y,), flops=flops, bytes_read=read)


def _loop_backward(tape: Tape, layer: GroupedLinear, x: Operand, weight: Operand) -> None:
    """Of each group its rows' gradient, in a tensor of all rows, and these added up."""
    dtype = layer.compute
    for n_rows in _each(tape, layer, x):
        rows = tensor(dtype, n_rows, layer.n_out)
        tape.product("mm", transposed(rows), tensor(dtype, n_rows, layer.n_in))
        of_group = tape.product("mm", rows, _matrix(weight, turned=False))
        tape.call("slice_backward", (of_group,), (x,))
    with tape.times(layer.n_groups - 1):
        tape.pointwise("add", x, x)
    matrices = Operand(shape=weight.shape[1:], dtype=dtype, count=layer.n_groups)
    tape.call("stack", (matrices,), (weight,))


def _each(tape: Tape, layer: GroupedLinear, x: Operand) -> Iterator[int]:
    """The rows of a group, once for each size that groups have."""
    for n_rows, n_groups in group_sizes(x.shape[0], layer.n_groups):
        with tape.times(n_groups):
            yield n_rows


def _matrix(weight: Operand, *, turned: bool) -> Operand:
    one = tensor(weight.dtype, *weight.shape[1:])
    return transposed(one) if turned else one
