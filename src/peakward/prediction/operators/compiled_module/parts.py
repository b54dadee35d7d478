"""The parts of a captured step that are compiled, each as its loops and the values between them.

A value is what one operator wrote to a memory: where an operator writes in place, the memory has a new value.
Parts that are alike, as the blocks of a model, are equal here: their values are numbered as they come.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from math import inf
from typing import Literal, NamedTuple

import msgspec

from peakward.prediction.operators.compiled_module.loops import Given, Loop, Read, loops, whole
from peakward.records.op_graph import (
    ITEM_BYTES,
    Call,
    CompiledParts,
    ModuleCapture,
    Operand,
    Operator,
    Seen,
)

_WRITES_ALONE = frozenset({"aten.copy_", "aten.fill_", "aten.zero_"})
Origin = Literal["parameter", "given", "made", "zeros"]
"""Zeros are what autograd gives the backward pass for the gradient of an output that got none."""


class Value(NamedTuple):
    """The result of one operator, or a tensor that a part is given."""

    operand: Operand
    n_bytes: int
    """The size; of a given value, its whole memory's."""
    origin: Origin
    leaves: bool
    """Whether it is needed outside the part."""


class Part(NamedTuple):
    """One call of a compiled part, in both directions."""

    loops: tuple[Loop, ...]
    values: tuple[Value, ...]


class Placed(NamedTuple):
    """A part in its step."""

    part: Part
    memories: tuple[int | None, ...]
    """The index of the lifetime of each value's memory; None of what torch's operators keep to themselves."""
    forward_at: tuple[int, int]
    """The first and the last operator, among those that lifetimes are told by."""
    backward_at: tuple[int, int] | None


class Outside(NamedTuple):
    """A call that stays eager."""

    call: Call
    reads: tuple[int, ...]
    """Memories."""


class Parts(NamedTuple):
    """A step whose parts are compiled."""

    parts: tuple[Placed, ...]
    """By the number of their calls, from 1."""
    outside: tuple[Outside, ...]
    read_outside: dict[int, int]
    """The last operator outside all parts that reads each memory, among those that lifetimes are told by."""
    handed_on: frozenset[int]
    """Memories that one part makes and another reads."""
    merged: frozenset[int]
    """Memories of casts that a part makes once where eager code makes them again."""


def parts_of(capture: ModuleCapture) -> Parts:
    """The parts of a capture with compiled parts."""
    assert capture.compiled is not None
    return _Reader(capture, capture.compiled).read()


class _Open:
    """A part as it is read."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.loops: list[Loop] = []
        self.local: dict[int, int] = {}
        """The numbers of values in the part, by those in the step."""
        self.operands: list[Operand] = []
        self.memories: list[int | None] = []
        self.made: dict[int, Call] = {}
        """The call that wrote each value."""
        self.ungiven: set[int] = set()
        """Outputs whose gradient is zeros."""

    def value(self, number: int, operand: Operand, memory: int | None) -> int:
        """The number of a value in the part."""
        if number not in self.local:
            self.local[number] = len(self.operands)
            self.operands.append(operand)
            self.memories.append(memory)
        return self.local[number]

    def keep_apart(self, operand: Operand) -> int:
        """A value that only one operator's own loops read."""
        self.operands.append(operand)
        self.memories.append(None)
        return len(self.operands) - 1


class _Reader:
    """Reads calls in order."""

    def __init__(self, capture: ModuleCapture, compiled: CompiledParts) -> None:
        self._capture, self._compiled = capture, compiled
        self._operators = capture.graph.operators
        self._ats = sorted(each.at for each in compiled.calls)
        self._open: dict[int, _Open] = {}
        self._values: dict[int, int] = {}
        """The value of each memory."""
        self._n_values = 0
        self._made_by: dict[int, int] = {}
        """The part that wrote a value."""
        self._leaving: set[int] = set()
        self._read: set[int] = set()
        self._read_outside: dict[int, int] = {}
        self._handed_on: set[int] = set()
        self._written: dict[tuple[int, int], int] = {}
        """The last value that the forward pass of each part wrote to a memory."""
        self._given_back = {compiled.seen[each.seen].memory for each in compiled.outputs}
        self._casts: dict[tuple[int, str, tuple[Read, ...], str], int] = {}
        self._merged: set[int] = set()

    def read(self) -> Parts:
        outside = []
        for call in self._compiled.calls:
            if call.part:
                self._inside(call)
            else:
                outside.append(self._outside(call))
        self._returned()
        found = [self._placed(self._open[number]) for number in sorted(self._open)]
        handed_on, merged = frozenset(self._handed_on), frozenset(self._merged)
        return Parts(tuple(found), tuple(outside), self._read_outside, handed_on, merged)

    def _seen(self, indices: Iterable[int]) -> list[Seen]:
        return [self._compiled.seen[i] for i in indices]

    def _value(self, memory: int) -> int:
        if memory not in self._values:
            self._new(memory)
        return self._values[memory]

    def _new(self, memory: int) -> int:
        self._values[memory] = self._n_values
        self._n_values += 1
        return self._values[memory]

    def _note_read(self, memory: int, part: int) -> int:
        number = self._value(memory)
        self._read.add(number)
        if self._made_by.get(number, part) != part:
            self._leaving.add(number)
            if part:
                self._handed_on.add(memory)
        return number

    def _outside(self, call: Call) -> Outside:
        memories = [each.memory for each in self._seen(call.reads)]
        for memory in memories:
            self._note_read(memory, 0)
            self._read_outside[memory] = call.at
        for each in self._seen(call.writes):
            self._new(each.memory)
        return Outside(call, tuple(memories))

    def _inside(self, call: Call) -> None:
        part, operator = self._open.setdefault(call.part, _Open()), self._operators[call.operator]
        part.calls.append(call)
        given, written = self._seen(call.reads), self._seen(call.writes)
        if operator.name in _WRITES_ALONE:
            given = [*self._beside(written[0]), *given[1:]]
        reads = tuple(
            Read(
                part.value(self._note_read(each.memory, call.part), _operand(each), each.memory),
                _operand(each),
                each.offset,
                each.n_bytes,
            )
            for each in given
        )
        casts = operator.name == "aten._to_copy" and operator.inputs != operator.outputs
        if casts and self._is_cast_before(call, reads, written[0]):
            return
        writes = []
        for each in written:
            in_place = each.memory in self._values
            number = self._new(each.memory)
            self._made_by[number] = call.part
            part.made[number] = call
            if operator.phase == "forward":
                self._written[call.part, each.memory] = number
            if in_place and self._capture.lifetimes[each.memory].made < part.calls[0].at:
                self._leaving.add(number)
            writes.append(part.value(number, self._made(operator, each), each.memory))
        part.loops += loops(
            Given(
                _plain(operator.name),
                call.operator,
                operator,
                reads,
                tuple(writes),
                tuple(self._made(operator, each) for each in written),
                part.keep_apart,
            )
        )

    def _made(self, operator: Operator, written: Seen) -> Operand:
        """The result. Where a part of a memory is written in place, a graph has the whole anew, the part with
        what lies beside it (`slice_scatter`)."""
        whole = self._bytes(written.memory)
        if not operator.name.endswith("_") or written.n_bytes >= whole:
            return _operand(written)
        return Operand(shape=(whole // ITEM_BYTES[written.dtype],), dtype=written.dtype)

    def _beside(self, written: Seen) -> list[Seen]:
        """Returns what lies beside a part that is written; nothing where nobody has written there."""
        rest = self._bytes(written.memory) - written.n_bytes
        if rest <= 0 or written.memory not in self._values:
            return []
        return [msgspec.structs.replace(written, n_bytes=rest)]

    def _is_cast_before(self, call: Call, reads: tuple[Read, ...], made: Seen) -> bool:
        """Whether the pass has cast the same to the same type: where a graph is cut in two there is one of
        them (`fx_graph_cse` in torch's partitioner). A graph without a backward pass keeps them all."""
        if self._capture.pass_ == "forward":
            return False
        operator = self._operators[call.operator]
        key = (call.part, operator.phase, reads, made.dtype)
        if (
            made.memory in self._given_back
            or self._casts.setdefault(key, made.memory) == made.memory
        ):
            return False
        self._values[made.memory] = self._values[self._casts[key]]
        self._merged.add(made.memory)
        return True

    def _returned(self) -> None:
        """Returned values leave their parts. A gradient that nothing outside gives is made of zeros."""
        for each in self._compiled.outputs:
            part, memory = self._open.get(each.part), self._compiled.seen[each.seen].memory
            number = self._written.get((each.part, memory))
            if part is None or number is None:
                continue
            if each.differentiable and number not in self._leaving:
                part.ungiven.add(number)
            self._leaving.add(number)

    def _bytes(self, memory: int) -> int:
        return self._capture.lifetimes[memory].n_bytes

    def _placed(self, part: _Open) -> Placed:
        ends = {
            backward: _span(each for each in part.calls if self._is_backward(each) == backward)
            for backward in (False, True)
        }
        leaving = {part.local[each] for each in self._leaving & part.made.keys()}
        for number, call in part.made.items():
            if self._is_held(number, call, ends, part):
                leaving.add(part.local[number])
        made = {part.local[each] for each in part.made}
        values = [
            self._told(operand, memory, made=i in made, leaves=i in leaving)
            for i, (operand, memory) in enumerate(zip(part.operands, part.memories, strict=True))
        ]
        found = part.loops if ends[True] is None else _with_zeros(part, values)
        forward = ends[False] or ends[True]
        assert forward is not None
        return Placed(Part(tuple(found), tuple(values)), tuple(part.memories), forward, ends[True])

    def _is_backward(self, call: Call) -> bool:
        return self._operators[call.operator].phase == "backward"

    def _is_held(
        self, number: int, call: Call, ends: Mapping[bool, tuple[int, int] | None], part: _Open
    ) -> bool:
        """Whether the value outlives its pass though nothing outside reads it: a gradient, or, where nothing
        trains, what Python still has at the next call, as in a cache. Autocast's own cache of parameters is
        off while a graph is traced (torch's `disable_autocast_cache`), so that a cast ends with the graph:
        with it 24 casts of a Granite were told to stay, and its peak 32% too high."""
        if self._is_cast_of_parameter(call):
            return False
        backward = self._is_backward(call)
        span, memory = ends[backward], part.memories[part.local[number]]
        assert span is not None and memory is not None
        if self._values[memory] != number:
            return False
        last = self._capture.lifetimes[memory].last
        if backward:
            return last > span[1] and number not in self._read
        return self._capture.pass_ == "forward" and last >= self._next_at(span[1])

    def _is_cast_of_parameter(self, call: Call) -> bool:
        if self._operators[call.operator].name != "aten._to_copy":
            return False
        (given,) = self._seen(call.reads)
        return self._capture.lifetimes[given.memory].held_for == "parameters"

    def _next_at(self, at: int) -> float:
        """The first call behind that one."""
        i = bisect_right(self._ats, at)
        return self._ats[i] if i < len(self._ats) else inf

    def _told(self, operand: Operand, memory: int | None, *, made: bool, leaves: bool) -> Value:
        if memory is None:
            return Value(operand, operand.n_bytes, "made", leaves=False)
        lifetime = self._capture.lifetimes[memory]
        if made:
            return Value(operand, operand.n_bytes, "made", leaves)
        origin: Origin = "parameter" if lifetime.held_for == "parameters" else "given"
        return Value(operand, lifetime.n_bytes, origin, leaves=False)


def _with_zeros(part: _Open, values: list[Value]) -> list[Loop]:
    """The loops of a part, of which those that make the gradient of an output which got none add zeros to it:
    the first of its size whose result a call reads."""
    found = list(part.loops)
    called = {
        read.value for loop in found if loop.backward and loop.kind == "call" for read in loop.reads
    }
    for number in sorted(part.ungiven):
        operand = values[part.local[number]].operand
        ends = (
            i
            for i, loop in enumerate(found)
            if loop.backward and loop.n == operand.n_elements and not called.isdisjoint(loop.writes)
        )
        i = next(ends, None)
        if i is not None and found[i].kind == "pointwise":
            reads = (*found[i].reads, whole(len(values), operand))
            found[i] = found[i]._replace(reads=reads)
            values.append(Value(operand, operand.n_bytes, "zeros", leaves=False))
            part.memories.append(None)
    return found


def _operand(seen: Seen) -> Operand:
    return Operand(shape=seen.shape, dtype=seen.dtype)


def _plain(name: str) -> str:
    """Without "aten.", and without the mark of what is done in place."""
    plain = name.removeprefix("aten.")
    return plain if plain.endswith("__") else plain.removesuffix("_")


def _span(calls: Iterable[Call]) -> tuple[int, int] | None:
    found = [each.at for each in calls]
    return (found[0], found[-1]) if found else None
