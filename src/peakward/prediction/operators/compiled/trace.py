"""A writer whose operators are a compiled part: the loops that Inductor lowers them to, and values between
them.

What is said of the reference decoder operator by operator, for eager code, so serves compiled code as a
capture serves a user's module (`compiled_module`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from peakward.prediction.operators.compiled_module.loops import Given, Loop, Read, loops
from peakward.prediction.operators.compiled_module.parts import Origin, Part
from peakward.prediction.operators.compiled_module.parts import Value as PartValue
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.measurement import Phase
from peakward.records.op_graph import Operand, Operator

_OWN = "peakward."


class Trace(Writer):
    """Writes operators down as a part. The place of a value is the number of a view of one of the part's."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Operator] = []
        self.scratch: dict[int, tuple[int, ...]] = {}
        """Bytes that an operator has for the meantime, by its index."""
        self._loops: list[Loop] = []
        self._values: list[PartValue] = []
        self._views: list[tuple[int, int]] = []
        """The value that each view is of, and the number of its first element."""
        self._parameters: dict[tuple[str | None, str, Operand], Value] = {}
        self._phase: Phase = "forward"
        self._module: str | None = None

    @property
    def part(self) -> Part:
        """All that was written."""
        return Part(tuple(self._loops), tuple(self._values))

    def given(self, operand: Operand) -> Value:
        """A tensor that the part is given."""
        return self._viewed(self._new(operand, "given"))

    def number(self, value: Value) -> int:
        """The number of a value in the part."""
        return self._views[value.there][0]

    def leave(self, value: Value) -> int:
        """The value's number. It is needed outside the part."""
        number = self.number(value)
        self._values[number] = self._values[number]._replace(leaves=True)
        return number

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Inside, operators are of the backward pass."""
        self._phase = "backward"
        yield
        self._phase = "forward"

    @contextmanager
    def module(self, path: str | None) -> Iterator[None]:
        """Inside, operators belong to the module of this path."""
        before, self._module = self._module, path
        yield
        self._module = before

    def parameter(self, operand: Operand, name: str = "weight") -> Value:
        """The module's tensor of this name."""
        key = self._module, name, operand
        if key not in self._parameters:
            self._parameters[key] = self._viewed(self._new(operand, "parameter"))
        return self._parameters[key]

    def piece(self, x: Value, operand: Operand, first: int) -> Value:
        """The elements of x from `first` on that have this shape."""
        number, before = self._views[x.there]
        self._views.append((number, before + first))
        return Value(operand, len(self._views) - 1)

    def call(
        self,
        name: str,
        inputs: Iterable[Value],
        outputs: Sequence[Operand],
        *,
        flops: int = 0,
        bytes_read: int | None = None,
        scratch: Iterable[int] = (),
        parameters: Sequence[Operand] = (),
        changes: Sequence[Operand] = (),
        **_of_eager: Any,
    ) -> tuple[Value, ...]:
        """One call; what it makes of parameters' gradients is needed outside."""
        inputs, results = tuple(inputs), (*changes, *outputs, *parameters)
        given, read = (*(each.operand for each in inputs), *changes), bytes_read
        operator = Operator(
            name=name if name.startswith(_OWN) else f"aten.{name}",
            phase=self._phase,
            module=self._module,
            inputs=given,
            outputs=results,
            flops=flops,
            bytes_read=sum(each.n_bytes for each in given) if read is None else read,
            bytes_written=sum(each.n_bytes for each in results),
        )
        made = self.carried_out(operator, inputs, scratch=scratch, n_changed=len(changes))
        for each in made[len(outputs) :]:
            self.leave(each)
        return made

    def carried_out(
        self,
        operator: Operator,
        inputs: Iterable[Value],
        *,
        scratch: Iterable[int] = (),
        n_changed: int = 0,
    ) -> tuple[Value, ...]:
        """The results of an operator whose record is there, called with these values. The first `n_changed`
        in its record are what it changes in place, which no other operator of the part reads."""
        place, name = len(self.operators), operator.name.removeprefix("aten.")
        self.operators.append(
            msgspec.structs.replace(operator, phase=self._phase, module=self._module)
        )
        if scratch := tuple(scratch):
            self.scratch[place] = scratch
        reads = tuple([self._read(each) for each in inputs])
        results = operator.outputs[n_changed:]
        made = tuple([self._new(each, "made") for each in results])
        given = Given(name, place, self.operators[-1], reads, made, results, self._keep_apart)
        self._loops += loops(given)
        return tuple(map(self._viewed, made))

    def for_time(
        self,
        name: str,
        inputs: Iterable[Value],
        outputs: Sequence[Operand],
        *,
        bytes_read: int | None = None,
    ) -> tuple[Value, ...]:
        """A call as any other."""
        return self.call(name, inputs, outputs, bytes_read=bytes_read)

    def timed(self, name: str, *inputs: Value, output: Operand) -> None:
        """A call that writes over its first operand, which has a new value from now on."""
        (made,) = self.call(name, inputs, (output,))
        before, after = self.number(inputs[0]), self.number(made)
        self._views = [
            (after if number == before else number, first) for number, first in self._views
        ]

    def joined(self, *parts: Value, along: int) -> Value:
        """The parts put behind one another along a dimension."""
        shape = list(parts[0].operand.shape)
        shape[along] = sum(each.operand.shape[along] for each in parts)
        result = Operand(shape=tuple(shape), dtype=parts[0].operand.dtype)
        return self.call("cat", parts, (result,))[0]

    def _read(self, x: Value) -> Read:
        number, first = self._views[x.there]
        return Read(number, x.operand, first, x.operand.n_bytes)

    def _new(self, operand: Operand, origin: Origin) -> int:
        self._values.append(PartValue(operand, operand.n_bytes, origin, leaves=False))
        return len(self._values) - 1

    def _keep_apart(self, operand: Operand) -> int:
        return self._new(operand, "made")

    def _viewed(self, number: int) -> Value:
        self._views.append((number, 0))
        return Value(self._values[number].operand, len(self._views) - 1)
