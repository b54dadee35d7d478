"""One graph of compiled code: its kernels in order, and the buffers that Inductor gives them.

Inductor decides before anything runs which buffer each kernel writes to (`scheduler.py` and
`codegen/wrapper.py` of torch._inductor, 2.11): over an input that nobody needs afterwards, where
element by element is written what was read; into one of the same size and type that is free by then, if
it was freed by the kernel before or the graph's peak is none the higher for having kept it; else into
a new one of torch's allocator. What no kernel needs any more goes back at once, unless it is to be
reused. Results of operators that allocate by themselves are new each time.
"""

from typing import Literal, NamedTuple

from peakward.prediction.memory.timeline import Category, Timeline
from peakward.records.op_graph import Operand

TUNING_BYTES = 60 * 2**20
"""Held while a kernel of Inductor's is timed in its variants, when it is first launched: as much as the
last cache, to clear it (`runtime/benchmarking.py`). An H200 has 60 MiB, an H100 50."""


class Buffer:
    """A tensor of the graph: a parameter of it, or what a kernel writes."""

    __slots__ = ("dtype", "n_bytes", "tensor")

    def __init__(self, like: Operand, tensor: int | None = None) -> None:
        self.n_bytes, self.dtype = like.n_bytes, like.dtype
        self.tensor = tensor
        """On the timeline, once it is there."""

    @property
    def place(self) -> int:
        """`tensor` of a buffer that is there."""
        assert self.tensor is not None
        return self.tensor


class _Kernel(NamedTuple):
    kind: Literal["fused", "product", "operator"]
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    over: Buffer | None = None
    category: Category = "temporaries"
    scratch: tuple[int, ...] = ()


class Graph:
    """Kernels as they are written down, then carried out on a timeline by `run`."""

    def __init__(self) -> None:
        self._kernels: list[_Kernel] = []

    def fused(
        self,
        *reads: Buffer,
        writes: tuple[Operand, ...],
        over: Buffer | None = None,
        category: Category = "temporaries",
    ) -> tuple[Buffer, ...]:
        """A kernel of Inductor's, whose first result may be written over `over`."""
        made = tuple(map(Buffer, writes))
        self._kernels.append(_Kernel("fused", reads, made, over, category))
        return made

    def product(
        self, *reads: Buffer, writes: Operand, category: Category = "temporaries"
    ) -> Buffer:
        """A matrix product by torch, into a buffer that it is given."""
        made = Buffer(writes)
        self._kernels.append(_Kernel("product", reads, (made,), None, category))
        return made

    def operator(
        self, *reads: Buffer, writes: tuple[Operand, ...], scratch: tuple[int, ...] = ()
    ) -> tuple[Buffer, ...]:
        """An operator of torch's or Peakward's that allocates its results by itself, and bytes for the
        meantime."""
        made = tuple(map(Buffer, writes))
        self._kernels.append(_Kernel("operator", reads, made, scratch=scratch))
        return made

    def run(self, line: Timeline, *results: Buffer, tuning: bool) -> None:
        """All kernels, one after another; the results are there until whoever has them is done.

        Args:
            line: to carry them out on.
            results: of the graph.
            tuning: whether its kernels are launched for the first time.
        """
        planner = _Planner(self._kernels, results)
        for i, kernel in enumerate(self._kernels):
            new = planner.place(i)
            there = [each.tensor for each in (*kernel.reads, *kernel.writes)]
            made = line.ops(
                (*(each.n_bytes for each in new), *kernel.scratch),
                *(each for each in there if each is not None),
                category=kernel.category,
            )
            for each, tensor in zip(new, made, strict=False):
                each.tensor = tensor
            if tuning and kernel.kind == "fused":
                line.op(TUNING_BYTES, *(each.place for each in (*kernel.reads, *kernel.writes)))


class _Planner:
    """Who writes to which buffer."""

    def __init__(self, kernels: list[_Kernel], results: tuple[Buffer, ...]) -> None:
        self._kernels = kernels
        self._last: dict[Buffer, int] = {}
        for i, kernel in enumerate(kernels):
            self._last.update(dict.fromkeys((*kernel.reads, *kernel.writes), i))
        self._reusable: list[list[Buffer]] = [[] for _ in kernels]
        """Made by the graph and read for the last time by each kernel."""
        for kernel in kernels:
            for each in kernel.writes:
                if each not in results:
                    self._reusable[self._last[each]].append(each)
        self._held = self._held_without_reuse(results)
        self._peak = max(self._held)
        self._free: dict[tuple[int, str], list[tuple[int, Buffer]]] = {}

    def place(self, i: int) -> list[Buffer]:
        """Give the i-th kernel's results their places; those that need a new one."""
        kernel, new = self._kernels[i], []
        over = kernel.over if kernel.over is not None and self._last[kernel.over] == i else None
        untaken = over
        for each in kernel.writes:
            if untaken is not None and _alike(untaken, each):
                each.tensor, untaken = untaken.tensor, None
            elif kernel.kind != "operator":
                each.tensor = self._reused(each, i)
            if each.tensor is None:
                new.append(each)
        for buffer in self._reusable[i]:
            if buffer is not over:
                self._free.setdefault((buffer.n_bytes, buffer.dtype), []).append((i, buffer))
        return new

    def _reused(self, wanted: Buffer, now: int) -> int | None:
        """The place of the buffer alike that was freed last, if it is taken."""
        free = self._free.get((wanted.n_bytes, wanted.dtype))
        if not free:
            return None
        freed, buffer = free[-1]
        between = range(freed + 1, now)
        if any(self._held[i] + wanted.n_bytes > self._peak for i in between):
            return None
        for i in between:
            self._held[i] += wanted.n_bytes
        free.pop()
        return buffer.tensor

    def _held_without_reuse(self, results: tuple[Buffer, ...]) -> list[int]:
        held = [0] * len(self._kernels)
        made = {each: i for i, kernel in enumerate(self._kernels) for each in kernel.writes}
        for buffer, last in self._last.items():
            end = len(held) - 1 if buffer in results else last
            for i in range(made.get(buffer, 0), end + 1):
                held[i] += buffer.n_bytes
        return held


def _alike(one: Buffer, other: Buffer) -> bool:
    return (one.n_bytes, one.dtype) == (other.n_bytes, other.dtype)
