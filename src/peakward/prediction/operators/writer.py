"""One description of operators, read twice: for time as calls on a tape, for memory as tensors on a timeline.

A value is a tensor as operators see it, with its place in memory. What lies on no timeline, a parameter among
them, has no place.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from peakward.prediction.memory.timeline import Category, Timeline
from peakward.prediction.operators.tape import Tape, alike, promoted, tensor
from peakward.records.op_graph import Operand

_NO_MODULE = nullcontext()


class Value(NamedTuple):
    """A tensor; views of one have its place."""

    operand: Operand
    place: int | None = None

    @property
    def there(self) -> int:
        """The place of a value that lies on a timeline."""
        assert self.place is not None
        return self.place

    def viewed(self, operand: Operand) -> "Value":
        """The same memory as another shape."""
        return Value(operand, self.place)


class Writer:
    """Writes operators down for time, for memory, or for both."""

    def __init__(self, tape: Tape | None = None, line: Timeline | None = None) -> None:
        self.tape, self.line = tape, line

    def parameter(self, operand: Operand, name: str = "weight") -> Value:
        """A tensor of the module, by its name, that is there before and after: it lies on no timeline."""
        del name
        return Value(operand)

    def piece(self, x: Value, operand: Operand, first: int) -> Value:
        """The elements of x from `first` on that have this shape."""
        del first
        return x.viewed(operand)

    def module(self, path: str | None) -> AbstractContextManager[None]:
        """Inside, operators belong to the module of this path."""
        return _NO_MODULE if self.tape is None else self.tape.module(path)

    def times(self, n: int) -> Iterator[None]:
        """Later operators run n times; for time they are written once, as so many."""
        if self.tape is None:
            yield from [None] * n
            return
        with self.tape.times(n):
            yield

    def call(
        self,
        name: str,
        inputs: Iterable[Value],
        outputs: Sequence[Operand],
        *,
        flops: int = 0,
        bytes_read: int | None = None,
        held: Iterable[Value] = (),
        scratch: Iterable[int] = (),
        category: Category = "temporaries",
        dear: bool = False,
        parameters: Sequence[Operand] = (),
        changes: Sequence[Operand] = (),
    ) -> tuple[Value, ...]:
        """One call of an operator: torch's by aten's name, Peakward's as "peakward.…".

        Args:
            name: of the operator.
            inputs: read whole, unless `bytes_read` says otherwise.
            outputs: what it makes.
            flops: of its products.
            bytes_read: where that is not the inputs' size.
            held: what else is there meanwhile, as all that a node of autograd keeps.
            scratch: bytes that it has for the meantime.
            category: of what it makes.
            dear: selective checkpointing keeps what it makes.
            parameters: gradients of parameters, which it makes as well.
            changes: what it changes in place, beside its inputs; the results are without it.
        """
        inputs, results = tuple(inputs), (*outputs, *parameters)
        if self.tape is not None:
            given, written = (*(x.operand for x in inputs), *changes), (*changes, *results)
            if name.startswith("peakward."):
                self.tape.own(name.removeprefix("peakward."), given, written, flops=flops)
            else:
                self.tape.call(name, given, written, flops=flops, bytes_read=bytes_read)
        if self.line is None:
            return tuple([Value(each) for each in results])
        uses = [x.place for x in (*inputs, *held) if x.place is not None]
        made: list[Value] = []
        if outputs:
            sizes = [each.n_bytes for each in outputs]
            make = self.line.dear if dear else self.line.ops
            places = iter(make([*filter(None, sizes), *scratch], *uses, category=category))
            for each, n_bytes in zip(outputs, sizes, strict=True):
                made.append(Value(each, next(places) if n_bytes else None))
            uses = [x.place for x in made if x.place is not None]
        for each in parameters:
            self.line.gradient(each.n_bytes, *uses)
            made.append(Value(each))
        return tuple(made)

    def for_time(
        self,
        name: str,
        inputs: Iterable[Value],
        outputs: Sequence[Operand],
        *,
        bytes_read: int | None = None,
    ) -> tuple[Value, ...]:
        """A call of which memory holds other tensors, which `for_memory` has, or none at all."""
        return Writer(self.tape).call(name, inputs, outputs, bytes_read=bytes_read)

    def for_memory(self, inputs: Iterable[Value], outputs: Sequence[Operand]) -> tuple[Value, ...]:
        """The tensors in memory while a call runs, and those that it makes there."""
        if self.line is None:
            return tuple([Value(each) for each in outputs])
        uses = [x.place for x in inputs if x.place is not None]
        places = self.line.ops([each.n_bytes for each in outputs], *uses)
        return tuple(map(Value, outputs, places))

    def timed(self, name: str, *inputs: Value, output: Operand) -> None:
        """A call that makes nothing on the device: in place, or for the host."""
        if self.tape is not None:
            given = tuple([each.operand for each in inputs])
            if name.startswith("peakward."):
                self.tape.own(name.removeprefix("peakward."), given, (output,))
            else:
                self.tape.call(name, given, (output,))

    def cast(
        self,
        x: Value,
        dtype: str,
        *,
        held: Iterable[Value] = (),
        category: Category = "temporaries",
    ) -> Value:
        """x in that type: itself where it has it."""
        if x.operand.dtype == dtype:
            return x
        result = tensor(dtype, *x.operand.shape)
        return self.call("_to_copy", (x,), (result,), held=held, category=category)[0]

    def finished(self, x: Value, dtype: str, *, held: Iterable[Value] = ()) -> None:
        """A parameter's gradient, cast to the type that the parameter is kept in."""
        if x.operand.dtype != dtype:
            made = (tensor(dtype, *x.operand.shape),)
            self.call("_to_copy", (x,), (), held=held, parameters=made)

    def pointwise(self, name: str, *inputs: Value, dtype: str | None = None) -> Value:
        """A new tensor of the shape that the inputs broadcast to, in the type that they promote to or in
        `dtype`."""
        result = promoted([each.operand for each in inputs], dtype)
        return self.call(name, inputs, (result,))[0]

    def reduced(self, name: str, x: Value, *shape: int, is_gradient: bool = False) -> Value:
        """x summed to this shape; it may be a parameter's gradient."""
        made = (tensor(x.operand.dtype, *shape),)
        if is_gradient:
            return self.call(name, (x,), (), parameters=made)[0]
        return self.call(name, (x,), made)[0]

    def joined(self, *parts: Value, along: int) -> Value:
        """The parts, as one list argument, put behind one another along a dimension."""
        first = parts[0].operand
        shape = list(first.shape)
        shape[along] = sum(each.operand.shape[along] for each in parts)
        result = tensor(first.dtype, *shape)
        if self.tape is not None:
            self.tape.call("cat", alike(tuple([each.operand for each in parts])), (result,))
        if self.line is None:
            return Value(result)
        return Writer(line=self.line).call("cat", parts, (result,))[0]

    def product(
        self,
        name: str,
        a: Value,
        b: Value,
        *,
        bias: Value | None = None,
        held: Iterable[Value] = (),
        category: Category = "temporaries",
        dear: bool = False,
        is_gradient: bool = False,
    ) -> Value:
        """`mm`, `bmm` or, with a bias, `addmm`: of (…, m, k) and (…, k, n); it may be a parameter's
        gradient."""
        left, right = a.operand, b.operand
        result = (tensor(left.dtype, *left.shape[:-1], right.shape[-1]),)
        return self.call(
            name,
            (a, b) if bias is None else (bias, a, b),
            () if is_gradient else result,
            flops=2 * math.prod(left.shape) * right.shape[-1],
            bytes_read=0 if 0 in left.shape or 0 in right.shape else None,
            held=held,
            category=category,
            dear=dear,
            parameters=result if is_gradient else (),
        )[0]

    def saved(self, *values: Value) -> tuple[Value, ...]:
        """The same values, which the forward pass has kept for the backward pass."""
        if self.line is not None:
            self.line.saved(*[each.place for each in values if each.place is not None])
        return values

    def use(self, *values: Value) -> None:
        """They are there until now."""
        if self.line is not None:
            self.line.use(*[each.place for each in values if each.place is not None])
