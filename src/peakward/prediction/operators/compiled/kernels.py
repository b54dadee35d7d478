"""One description of compiled code's kernels, read twice: for time as calls on a tape, for memory as kernels
of a graph, whose buffers are placed by Inductor's rules (`operators.compiled.graph`).

A value lies in a buffer of the graph; a parameter, or what is there for time alone, in none.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from peakward.prediction.memory.timeline import Category
from peakward.prediction.operators.compiled.graph import Buffer, Graph
from peakward.prediction.operators.linear import Linear, rows
from peakward.prediction.operators.tape import FusedKind, Tape, of_type, tensor, transposed
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand


class Kernels(Writer):
    """Writes kernels down for time or for memory."""

    def __init__(self, tape: Tape | None = None, graph: Graph | None = None) -> None:
        super().__init__(tape)
        self.graph = graph
        self._buffers: list[Buffer] = []
        self.gradients: list[Value] = []
        """Gradients of parameters that an operator of Peakward's made, in its order."""

    def given(self, operand: Operand, tensor: int | None = None) -> Value:
        """A tensor of the timeline that the graph is given."""
        if self.graph is None:
            return Value(operand)
        return self._lying(Buffer(operand, tensor), operand)

    def buffer(self, value: Value) -> Buffer:
        """The buffer that a value lies in."""
        return self._buffers[value.there]

    def buffers(self, *values: Value) -> tuple[Buffer, ...]:
        """The buffers of those values that lie in one."""
        return tuple([self.buffer(each) for each in values if each.place is not None])

    def places(self, *values: Value) -> tuple[int, ...]:
        """The places on the timeline of those values that lie in a buffer, once they are there."""
        return tuple([each.place for each in self.buffers(*values)])

    def behind(self, graph: Graph) -> "Kernels":
        """Writes another graph, which is given what this one made."""
        later = Kernels(self.tape, graph)
        later._buffers = list(self._buffers)
        return later

    def fused(
        self,
        kind: FusedKind,
        names: Iterable[str],
        reads: Sequence[Value],
        writes: tuple[Operand, ...],
        *,
        over: Value | None = None,
        held: Sequence[Value] = (),
        category: Category = "temporaries",
        bytes_read: int | None = None,
        n_in_workspace: int = 0,
    ) -> tuple[Value, ...]:
        """One kernel that Inductor makes of aten's `names`.

        Args:
            kind: its loop.
            names: of what it fuses.
            reads: its operands.
            writes: what it makes.
            over: the operand that the first result may be written over.
            held: what else is there meanwhile.
            category: of what it makes.
            bytes_read: where it does not read its operands whole.
            n_in_workspace: so many of the last results lie in one buffer.
        """
        if self.tape is not None:
            given = tuple([each.operand for each in reads])
            self.tape.fused(kind, names, given, writes, bytes_read=bytes_read)
        if self.graph is None:
            return tuple(map(Value, writes))
        apart, rest = writes, writes[len(writes) - n_in_workspace :]
        if rest:
            whole = tensor(rest[0].dtype, len(rest), *rest[0].shape)
            apart = (*writes[: len(writes) - n_in_workspace], whole)
        made = self.graph.fused(
            *self.buffers(*reads, *held),
            writes=apart,
            over=None if over is None else self.buffer(over),
            category=category,
        )
        return tuple(map(self._lying, (*made, *made[-1:] * (len(rest) - 1)), writes))

    def narrowed(self, x: Value, dtype: str, *, category: Category = "temporaries") -> Value:
        """x in that type, by a kernel of its own where it is of another."""
        if x.operand.dtype == dtype:
            return x
        result = of_type(x.operand, dtype)
        return self.fused("pointwise", ("_to_copy",), (x,), (result,), category=category)[0]

    def product(
        self,
        name: str,
        a: Value,
        b: Value,
        *,
        category: Category = "temporaries",
        **_of_eager: Any,
    ) -> Value:
        """A product by torch, into a buffer that it is given."""
        result = tensor(a.operand.dtype, *a.operand.shape[:-1], b.operand.shape[-1])
        if self.tape is not None:
            self.tape.product(name, a.operand, b.operand)
        if self.graph is None:
            return Value(result)
        made = self.graph.product(*self.buffers(a, b), writes=result, category=category)
        return self._lying(made, result)

    def call(
        self,
        name: str,
        inputs: Iterable[Value],
        outputs: Sequence[Operand],
        *,
        scratch: Iterable[int] = (),
        parameters: Sequence[Operand] = (),
        **of_time: Any,
    ) -> tuple[Value, ...]:
        """An operator of torch's or Peakward's, called as it is: it allocates its results by itself. What
        has no bytes is not allocated."""
        inputs, results = tuple(inputs), (*outputs, *parameters)
        made = Writer(self.tape).call(name, inputs, outputs, parameters=parameters, **of_time)
        if self.graph is not None:
            writes = tuple(each for each in results if each.n_bytes)
            buffers = iter(
                self.graph.operator(*self.buffers(*inputs), writes=writes, scratch=tuple(scratch))
            )
            made = tuple(
                [
                    self._lying(next(buffers), each) if each.n_bytes else Value(each)
                    for each in results
                ]
            )
        self.gradients += made[len(outputs) :]
        return made

    def for_memory(
        self, inputs: Iterable[Value], outputs: Sequence[Operand], *, scratch: Iterable[int] = ()
    ) -> tuple[Value, ...]:
        """As `call`, where the tape has the operator already."""
        tape, self.tape = self.tape, None
        made = self.call("", inputs, outputs, scratch=scratch)
        self.tape = tape
        return made

    def _lying(self, buffer: Buffer, operand: Operand) -> Value:
        self._buffers.append(buffer)
        return Value(operand, len(self._buffers) - 1)


# A linear layer in compiled code: torch's own products, and the casts that autocast asks for.


class SavedLinear(NamedTuple):
    """Operands of the backward pass's products: the input, and the weight, kept where it was cast."""

    layer: Linear
    x: Value
    weight: Value


def linear_forward(
    on: Kernels, layer: Linear, x: Value, *, category: Category = "temporaries"
) -> tuple[SavedLinear, Value]:
    """x (…, n_in), already in the compute type → (…, n_out) in it."""
    with on.module(layer.module):
        weight = on.narrowed(Value(layer.weight), layer.compute, category="weight_casts")
        by_row = weight.viewed(transposed(weight.operand))
        y = on.product("mm", rows(x), by_row, category=category)
    y = y.viewed(tensor(layer.compute, *x.operand.shape[:-1], layer.n_out))
    return SavedLinear(layer, x, weight), y


def linear_of_input(on: Kernels, saved: SavedLinear, gradient: Value) -> Value:
    """Gradient of y (…, n_out) → of x (…, n_in), both in the compute type."""
    layer = saved.layer
    weight = saved.weight.viewed(of_type(layer.weight, layer.compute))
    with on.module(layer.module):
        x = on.product("mm", rows(gradient), weight)
    return x.viewed(tensor(layer.compute, *gradient.operand.shape[:-1], layer.n_in))


def linear_of_weight(on: Kernels, saved: SavedLinear, gradient: Value) -> Value:
    """Gradient of y (…, n_out) → of the weight, in the compute type."""
    flat = rows(gradient)
    across = flat.viewed(transposed(flat.operand))
    with on.module(saved.layer.module):
        return on.product("mm", across, rows(saved.x))


def widened(on: Kernels, saved: SavedLinear, gradient: Value) -> Value:
    """The weight's gradient in the type that the weight is kept in."""
    with on.module(saved.layer.module):
        return on.narrowed(gradient, saved.layer.stored)
