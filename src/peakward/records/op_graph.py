"""What the operators of one step are: shapes, arithmetic and traffic, without times.

Made in closed form (`prediction.operators`) or by watching a step (`lab.levers.capture`); both give
the same record. Its operators are torch's own, as eager execution dispatches them, and the kernels
that a compiler made of several; those that move nothing are left out: views, allocations, and reads
of a scalar.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, Self, TypeVar

import msgspec

from peakward.records.measurement import Phase

K = TypeVar("K", bound=Hashable)

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint64": 8,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element, by the name of its type in torch."""


class Operand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor that an operator takes or gives; of a list of tensors, all that are alike."""

    shape: tuple[int, ...]
    dtype: str
    """A key of `ITEM_BYTES`."""
    count: int = 1
    """More than 1 only for the tensors of one list argument, as `_foreach_` operators have."""

    @property
    def n_elements(self) -> int:
        """Of all its tensors."""
        return self.count * math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Of all its elements; of an expanded one, fewer of them lie in memory."""
        return self.n_elements * ITEM_BYTES[self.dtype]


class Operator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one operator that are alike in all that is said here. Figures are of one call.

    Bytes are the operands' own, each moved once however the kernel works: what is given twice, or
    also transposed, is read once, an expanded tensor in the elements that lie in memory, one
    changed in place is read and written, and of a table only the rows that are looked up are read.
    """

    name: str
    """As torch dispatches it, without the overload: "aten.mm". Of a kernel that a compiler made, the
    compiler and the kind of loop: "inductor.pointwise"; of one of Peakward's own, "peakward.adamw"."""
    phase: Phase
    """Recomputation belongs to the backward pass, in which it runs."""
    module: str | None
    """Path of the innermost module that it computes, or whose gradient, with `*` for a number
    ("blocks.*.attention.qkv"); None outside all modules, as where autograd adds two gradients up."""
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    """New tensors, and those changed in place."""
    flops: int
    """2·m·n·k for each matrix product, of a mask nothing spared; 0 for all that is none."""
    bytes_read: int
    bytes_written: int
    count: int = 1
    """Calls in the step."""
    fused: tuple[str, ...] = ()
    """The operators of torch whose work a compiler put into this one; empty for torch's own."""
    scattered: bool | None = None
    """Whether its operands lie differently in memory or leave gaps; None where it was not looked at,
    as of the reference decoder, whose code tells."""
    causal: bool = True
    """Of fused attention: whether half of its products are masked away."""


class Totals(NamedTuple):
    """Sums over calls."""

    n_calls: int
    flops: int
    bytes_read: int
    bytes_written: int


class OpGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operators of one step, about in the order in which each first runs."""

    operators: tuple[Operator, ...]

    @classmethod
    def of(cls, operators: Iterable[Operator]) -> Self:
        """Of any operators; those alike become one, counts added."""
        counts: dict[Operator, int] = {}
        for each in operators:
            single = each if each.count == 1 else msgspec.structs.replace(each, count=1)
            counts[single] = counts.get(single, 0) + each.count
        return cls(
            operators=tuple(
                msgspec.structs.replace(each, count=count) for each, count in counts.items()
            )
        )

    def totals(self, by: Callable[[Operator], K]) -> dict[K, Totals]:
        """Sums over the operators of each key, as `graph.totals(lambda each: each.phase)`."""
        sums: dict[K, Totals] = {}
        for each in self.operators:
            key, n = by(each), each.count
            before = sums.get(key, Totals(0, 0, 0, 0))
            sums[key] = Totals(
                before.n_calls + n,
                before.flops + n * each.flops,
                before.bytes_read + n * each.bytes_read,
                before.bytes_written + n * each.bytes_written,
            )
        return sums
