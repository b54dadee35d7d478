"""The operators of one step, with shapes, arithmetic and traffic; a captured module's tensors.

Operators are derived in closed form (`prediction.operators`) or captured from a step (`lab.levers.capture`);
both give the same record. They are torch's own operators as eager execution dispatches them, and the kernels
that a compiler makes of several. Operators that move nothing are left out: views, allocations, and reads of a
scalar, but for those in a captured module for which the host waits.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Literal, NamedTuple, Self, TypeVar

import msgspec

from peakward.records.case import ModulePass, Optimizer, StepCase
from peakward.records.measurement import Phase
from peakward.records.memory import MemoryPhase

K = TypeVar("K", bound=Hashable)
ITEM_BYTES = {
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint64": 8,
    "int64": 8,
    "uint32": 4,
    "int32": 4,
    "uint16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element, by the name of its type in torch."""


READ_BY_HOST = "aten._local_scalar_dense"
"""The operator that gives the host a value from the device."""
COPIED_FROM_HOST = "aten.lift_fresh"
"""The operator that makes a tensor of numbers of the host, `torch.tensor`, where these are copied to the
device."""
WAITS = frozenset({READ_BY_HOST, COPIED_FROM_HOST})
"""Operators for which the host waits until the device has done all before them: torch follows a copy between
the two by `cudaStreamSynchronize` (`memcpy_and_sync`, ATen/native/cuda/Copy.cu)."""


class Operand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor that an operator takes or gives. Equal tensors of a list are one operand."""

    shape: tuple[int, ...]
    dtype: str
    """A key of `ITEM_BYTES`."""
    count: int = 1
    """More than 1 only for equal tensors of one list argument, as in `_foreach_` operators."""

    @property
    def n_elements(self) -> int:
        """Elements of all its tensors."""
        return self.count * math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes of all its elements. An expanded tensor has fewer of them in memory."""
        return self.n_elements * ITEM_BYTES[self.dtype]


class Operator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal calls of one operator. Figures are for one call.

    Bytes are the operands' own, each moved once, however the kernel works. An operand given twice, or also
    transposed, is read once. An expanded tensor counts the elements in memory. A tensor changed in place is
    read and written. Of a table only the looked-up rows are read.
    """

    name: str
    """The name in torch's dispatch, without the overload: "aten.mm". For a compiler's kernel it is the
    compiler and the kind of loop: "inductor.pointwise"; for one of Peakward's own, "peakward.adamw"."""
    phase: Phase
    """Recomputation belongs to the backward pass, in which it runs."""
    module: str | None
    """The path of the innermost module that it computes, or whose gradient, with `*` for a number
    ("blocks.*.attention.qkv"). None outside all modules, for example where autograd adds two gradients."""
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    """New tensors, and tensors changed in place."""
    flops: int
    """2·m·n·k for each matrix product, with nothing saved for a mask; 0 for every other operator."""
    bytes_read: int
    bytes_written: int
    count: int = 1
    """The number of calls in the step."""
    fused: tuple[str, ...] = ()
    """Torch's operators whose work a compiler put into this one; empty for torch's own."""
    scattered: bool | None = None
    """Whether its operands differ in memory layout or have gaps. None where this was not checked, as for the
    reference decoder, whose code tells."""
    causal: bool = True
    """Whether half of the products of fused attention are masked away."""
    drops: bool = False
    """Whether fused attention has dropout."""


class Totals(NamedTuple):
    """Sums over calls."""

    n_calls: int
    flops: int
    bytes_read: int
    bytes_written: int


class OpGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operators of one step, roughly in the order in which each first runs."""

    operators: tuple[Operator, ...]

    @classmethod
    def of(cls, operators: Iterable[Operator]) -> Self:
        """A graph of these operators. Equal operators become one, with their counts added."""
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
        """Sums over the operators of each key, as in `graph.totals(lambda each: each.phase)`."""
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


Held = Literal["parameters", "gradients", "optimizer_state", "inputs", "activations", "temporaries"]


class Lifetime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The life of a tensor's memory: the first and the last operator during which it exists."""

    n_bytes: int
    held_for: Held
    made: int
    """The index of the first operator."""
    last: int
    """The index of the last operator. Both are included."""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A tensor as operators see it: a stretch of a memory that has a lifetime."""

    memory: int
    """The index of its lifetime."""
    offset: int
    """The number of its first element."""
    shape: tuple[int, ...]
    dtype: str
    """A key of `ITEM_BYTES`."""
    n_bytes: int
    """Bytes of its elements in memory: an expanded tensor has fewer of them there than elements."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A call of an operator, in the order of the step."""

    operator: int
    """The index in the graph."""
    at: int
    """The index among the operators that lifetimes are told by."""
    part: int
    """The number of the call of a compiled part that it computes, or whose gradient; 0 outside all."""
    reads: tuple[int, ...]
    """Indices of `Seen`."""
    writes: tuple[int, ...]


class Output(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that a call of a compiled part returns."""

    part: int
    seen: int
    differentiable: bool
    """Whether a backward pass may give it a gradient."""


class CompiledParts(msgspec.Struct, frozen=True, array_like=True):
    """The step as a compiler is given it, one graph for each call of a compiled part: the order of operators
    and the memory that each reads and writes, as eager execution has them."""

    seen: tuple[Seen, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Output, ...]
    n_module_calls: int
    """Calls of modules in the forward pass, but for those of parts and of what is in them."""
    told: bool
    """Whether a part, such as the whole model, was told that it is compiled; code may then do other than
    eagerly. Repeated blocks are not told: the eager step is recorded as it is."""


class ModuleCapture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a module: its operators as CUDA has them, and every tensor's lifetime."""

    name: str
    """The module's class."""
    fingerprint: str
    """A hash of the operators, and of their order where some are compiled: two equal captures have the same
    one."""
    pass_: ModulePass = msgspec.field(name="pass")
    n_parameters: int
    n_trained: int
    """Parameter tensors that need a gradient."""
    n_rows: int
    """Rows of its products in the forward pass: the elements of the first input, without a last dimension of
    floats. Token ids of shape (batch, seq_len) give batch · seq_len."""
    tokens: int | None
    """Tokens in a step; None where unknown."""
    n_module_calls: int
    """Calls of modules in the forward pass."""
    n_nodes: int
    """Nodes of the autograd graph that the forward pass makes."""
    graph: OpGraph
    """The operators of the second step."""
    phases: tuple[MemoryPhase, ...]
    """The phase of each operator, from building the module to the end of its second step."""
    lifetimes: tuple[Lifetime, ...]
    """In the order in which they begin."""
    optimizer: Optimizer = "adamw-foreach"
    """The form of AdamW that ends a train step."""
    compiled: CompiledParts | None = None
    """The parts that are compiled; None where nothing is. The graph and the lifetimes are of the eager step
    all the same."""

    @property
    def case(self) -> StepCase:
        """A case that stands for the capture where one is required."""
        return StepCase(
            name=f"{self.name} {self.pass_}",
            fingerprint=self.fingerprint,
            device="cuda",
            tokens_per_step=None if self.tokens is None else float(self.tokens),
        )
