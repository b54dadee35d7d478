"""How the functions of this room write operators down: as the tensors go through them.

An operand here has a shape and a type and is taken to be dense; where a layout decides whether
torch copies, `heads` says so.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec

from peakward.records.measurement import Phase
from peakward.records.op_graph import Operand, Operator, OpGraph

DOUBLE, FLOAT, BFLOAT, HALF = "float64", "float32", "bfloat16", "float16"
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
INT, INT32, INT8, UINT, UINT8, BOOL = "int64", "int32", "int8", "uint64", "uint8", "bool"
FusedKind = Literal["pointwise", "inner_reduction", "outer_reduction", "mixed_reduction"]
"""The loops of Inductor: over elements, or with a reduction along the last dimension, across it or both."""
_WIDTH = (BOOL, INT, HALF, BFLOAT, FLOAT, DOUBLE)
"""The types in torch's order of promotion: two types promote to the later one."""


def tensor(dtype: str, *shape: int) -> Operand:
    """A dense tensor."""
    return Operand(shape=shape, dtype=dtype)


def of_type(x: Operand, dtype: str) -> Operand:
    """As x, in another type."""
    return x if x.dtype == dtype else tensor(dtype, *x.shape)


class Tape:
    """The operators of a step, in the order in which they are written."""

    def __init__(self) -> None:
        self._written: list[Operator] = []
        self._phase: Phase = "forward"
        self._module: str | None = None
        self._times = 1
        self._left_out: frozenset[str] = frozenset()

    def graph(self) -> OpGraph:
        """All that was written."""
        return OpGraph.of(self._written)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Inside, operators are of this phase."""
        before, self._phase = self._phase, phase
        yield
        self._phase = before

    @contextmanager
    def module(self, path: str | None) -> Iterator[None]:
        """Inside, operators belong to the module of this path."""
        before, self._module = self._module, path
        yield
        self._module = before

    @contextmanager
    def times(self, n: int) -> Iterator[None]:
        """Inside, each operator stands for n times as many."""
        before, self._times = self._times, n * self._times
        yield
        self._times = before

    @contextmanager
    def without(self, names: frozenset[str]) -> Iterator[None]:
        """Inside, calls of these are left out: by aten's names, or as "peakward.…"."""
        before, self._left_out = self._left_out, names | self._left_out
        yield
        self._left_out = before

    def call(
        self,
        name: str,
        inputs: tuple[Operand, ...],
        outputs: tuple[Operand, ...],
        *,
        flops: int = 0,
        bytes_read: int | None = None,
    ) -> None:
        """One call of aten's `name`. It reads its inputs whole, unless said otherwise."""
        if name not in self._left_out:
            self._write(f"aten.{name}", inputs, outputs, flops=flops, bytes_read=bytes_read)

    def fused(
        self,
        kind: FusedKind,
        names: Iterable[str],
        inputs: tuple[Operand, ...],
        outputs: tuple[Operand, ...],
        *,
        bytes_read: int | None = None,
    ) -> None:
        """One kernel that Inductor makes of aten's `names`; it reads as `call` does."""
        fused = tuple(sorted(f"aten.{each}" for each in names))
        self._write(f"inductor.{kind}", inputs, outputs, bytes_read=bytes_read, fused=fused)

    def own(
        self,
        name: str,
        inputs: tuple[Operand, ...],
        outputs: tuple[Operand, ...],
        *,
        flops: int = 0,
        bytes_read: int | None = None,
        bytes_written: int | None = None,
    ) -> None:
        """One call of a kernel of Peakward's own. It reads its inputs and writes its outputs whole, unless
        said otherwise."""
        if (full := f"peakward.{name}") not in self._left_out:
            self._write(
                full,
                inputs,
                outputs,
                flops=flops,
                bytes_read=bytes_read,
                bytes_written=bytes_written,
            )

    def again(self, operator: Operator) -> None:
        """One call whose record is there, in the phase at hand."""
        if self._times:
            count = self._times * operator.count
            self._written.append(msgspec.structs.replace(operator, phase=self._phase, count=count))

    def _write(
        self,
        name: str,
        inputs: tuple[Operand, ...],
        outputs: tuple[Operand, ...],
        *,
        flops: int = 0,
        bytes_read: int | None,
        bytes_written: int | None = None,
        fused: tuple[str, ...] = (),
    ) -> None:
        if self._times == 0:
            return
        self._written.append(
            Operator(
                name=name,
                phase=self._phase,
                module=self._module,
                inputs=inputs,
                outputs=outputs,
                flops=flops,
                bytes_read=sum(x.n_bytes for x in inputs) if bytes_read is None else bytes_read,
                bytes_written=(
                    sum(x.n_bytes for x in outputs) if bytes_written is None else bytes_written
                ),
                count=self._times,
                fused=fused,
            )
        )

    def made(self, name: str, dtype: str, *shape: int) -> Operand:
        """A tensor made of nothing."""
        result = tensor(dtype, *shape)
        self.call(name, (), (result,))
        return result

    def pointwise(self, name: str, *inputs: Operand, dtype: str | None = None) -> Operand:
        """A new tensor of the shape that the inputs broadcast to, in the type that they promote to
        or in `dtype`."""
        result = promoted(inputs, dtype)
        self.call(name, inputs, (result,))
        return result

    def changed(self, name: str, target: Operand, *others: Operand) -> Operand:
        """The target, read and written in place."""
        self.call(name, (target, *others), (target,))
        return target

    def reduced(self, name: str, x: Operand, *shape: int) -> Operand:
        """x summed or averaged to this shape."""
        result = tensor(x.dtype, *shape)
        self.call(name, (x,), (result,))
        return result

    def cast(self, x: Operand, dtype: str) -> Operand:
        """x in that type: itself where it has it."""
        if x.dtype == dtype:
            return x
        return self.pointwise("_to_copy", x, dtype=dtype)

    def copied(self, x: Operand, *, stored_bytes: int | None = None) -> Operand:
        """x laid out anew; where it is expanded, `stored_bytes` of it lie in memory."""
        self.call("clone", (x,), (x,), bytes_read=stored_bytes)
        return x

    def joined(self, *parts: Operand, along: int) -> Operand:
        """The parts, as one list argument, put behind one another along a dimension."""
        shape = list(parts[0].shape)
        shape[along] = sum(part.shape[along] for part in parts)
        result = tensor(parts[0].dtype, *shape)
        self.call("cat", alike(parts), (result,))
        return result

    def product(self, name: str, a: Operand, b: Operand, *, bias: Operand | None = None) -> Operand:
        """`mm`, `bmm` or, with a bias, `addmm`: of (…, m, k) and (…, k, n)."""
        result = tensor(a.dtype, *a.shape[:-1], b.shape[-1])
        inputs = (a, b) if bias is None else (bias, a, b)
        nothing = 0 if 0 in a.shape + b.shape else None  # Nor is the other one read.
        flops = 2 * math.prod(a.shape) * b.shape[-1]
        self.call(name, inputs, (result,), flops=flops, bytes_read=nothing)
        return result


def alike(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """The tensors of one list argument, as an `Operator` has them: those alike as one."""
    counts: dict[tuple[tuple[int, ...], str], int] = {}
    for each in operands:
        key = (each.shape, each.dtype)
        counts[key] = counts.get(key, 0) + each.count
    return tuple(
        Operand(shape=shape, dtype=dtype, count=count) for (shape, dtype), count in counts.items()
    )


def transposed(x: Operand) -> Operand:
    """With the last two dimensions swapped, which moves nothing."""
    return tensor(x.dtype, *x.shape[:-2], x.shape[-1], x.shape[-2])


def promoted(inputs: Sequence[Operand], dtype: str | None = None) -> Operand:
    """The shape that they broadcast to, in the type that they promote to or in `dtype`."""
    first, *others = inputs
    for x in others:
        if x is not first and x != first:
            break
    else:
        return of_type(first, dtype or first.dtype)
    widest = max((x.dtype for x in inputs), key=_WIDTH.index)
    return tensor(dtype or widest, *_broadcast(inputs))


def _broadcast(inputs: Sequence[Operand]) -> tuple[int, ...]:
    rank = max(len(x.shape) for x in inputs)
    padded = [(1,) * (rank - len(x.shape)) + x.shape for x in inputs]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))
