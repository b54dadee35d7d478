"""Tensors of a captured step whose parts are compiled: each part's by Inductor's rules for buffers, the rest
as the capture has them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from peakward.prediction.memory.compiled_code import carried_out
from peakward.prediction.memory.timeline import WORKSPACE_BYTES, Lifetimes, Tensor, Timeline
from peakward.prediction.operators.compiled.graph import Buffer
from peakward.prediction.operators.compiled_module.fusion import Kernel
from peakward.prediction.operators.compiled_module.parts import Placed
from peakward.prediction.operators.compiled_module.step import Code, CompiledStep, compiled_step
from peakward.records.op_graph import ModuleCapture


def compiled_lifetimes(capture: ModuleCapture) -> Lifetimes:
    """All tensors of the second step, in which what stays is there already."""
    return _Memory(capture, compiled_step(capture)).lifetimes()


class _Memory:
    """Carries the step out on a timeline, whose operators are the kernels and the eager calls."""

    def __init__(self, capture: ModuleCapture, step: CompiledStep) -> None:
        assert capture.compiled is not None
        self._capture, self._step = capture, step
        self._line = Timeline()
        self._start = capture.compiled.calls[0].at
        self._now: list[int] = []
        """The time of each operator of the capture, from `_start` on."""
        self._places: dict[int, int] = {}
        """On the timeline, of memories that compiled parts made."""
        self._read: dict[int, int] = {}
        """The last time that a part reads what no part made."""
        self._saved: dict[tuple[int, int], dict[int, int]] = {}
        """The values that each part keeps, by where its forward pass is."""
        self._tuned: set[tuple[Kernel, ...]] = set()
        self._held = defaultdict[int, list[int]](list)
        """Tensors that something eager has until an operator of the capture."""

    def lifetimes(self) -> Lifetimes:
        """The whole of it."""
        self._run()
        own = self._line.lifetimes()
        end = len(own.phases) - 1
        n_threads = 1 if self._capture.pass_ == "forward" else 2
        workspaces = [Tensor(WORKSPACE_BYTES, "workspace", 0, end)] * n_threads
        found = [*workspaces, *self._eager(), *own.tensors()]
        return Lifetimes.of(sorted(found, key=lambda each: each.made), own.phases)

    def _run(self) -> None:
        begins = dict(self._begins())
        within = {at for each in self._step.parts.parts for at in _inside(each)}
        for at in range(self._start, len(self._capture.phases)):
            self._line.enter(self._capture.phases[at])
            if at in begins:
                placed, code, backward = begins[at]
                (self._backward if backward else self._forward)(placed, code)
            elif at not in within:
                self._line.ops(())
            self._line.use(*self._held.pop(at, ()))
            self._now.append(max(0, len(self._line.phases) - 1))

    def _begins(self) -> Iterator[tuple[int, tuple[Placed, Code, bool]]]:
        """The first operator of each pass of each part, and whether it goes backward."""
        for placed, code in zip(self._step.parts.parts, self._step.codes, strict=True):
            if code.forward:
                yield placed.forward_at[0], (placed, code, False)
            if placed.backward_at is not None:
                yield placed.backward_at[0], (placed, code, True)

    def _eager(self) -> Iterable[Tensor]:
        """Tensors that no part made; those of before the step are there from its begin."""
        made_inside = {
            memory
            for placed in self._step.parts.parts
            for memory, value in zip(placed.memories, placed.part.values, strict=False)
            if memory is not None and value.origin == "made"
        } | self._step.parts.merged
        within = {at for each in self._step.parts.parts for at in _inside(each)}
        for memory, each in enumerate(self._capture.lifetimes):
            is_inside = memory in made_inside and each.made >= self._start
            if not each.n_bytes or each.last < self._start or is_inside:
                continue
            if each.made == each.last and each.made in within:
                continue  # What an operator has for the meantime, where it is eager.
            last = max(self._time(each.last), self._read.get(memory, 0))
            yield Tensor(each.n_bytes, each.held_for, self._time(each.made), last)

    def _time(self, at: int) -> int:
        return self._now[at - self._start] if at > self._start else 0

    def _forward(self, placed: Placed, code: Code) -> None:
        given = self._given(placed, code, _read(code.forward) | set(code.saved))
        buffers = dict(given)
        results = self._carried_out(code.forward, code, buffers, kept=code.saved)
        self._line.use(*(each.place for each in given.values()))
        self._leave(placed, code, results)
        saved = {each: buffers[each].place for each in code.saved if each in buffers}
        self._line.saved(*saved.values())
        self._saved[placed.forward_at] = saved

    def _backward(self, placed: Placed, code: Code) -> None:
        own = self._saved.pop(placed.forward_at, {})
        given = self._given(placed, code, _read(code.backward) - own.keys())
        buffers = given | {
            value: Buffer(code.values[value].operand, tensor) for value, tensor in own.items()
        }
        zeros = {
            value: self._line.op(each.n_bytes)
            for value, each in enumerate(code.values)
            if each.origin == "zeros"
        }
        buffers |= {value: Buffer(code.values[value].operand, at) for value, at in zeros.items()}
        results = self._carried_out(code.backward, code, buffers, donated=own)
        # Autograd holds what it gives until the call is over.
        self._line.use(*(each.place for each in given.values()), *zeros.values())
        self._leave(placed, code, results)

    def _given(self, placed: Placed, code: Code, needed: set[int]) -> dict[int, Buffer]:
        """Buffers of what a pass needs of other parts. Its caller has them until it is over."""
        return {
            value: Buffer(code.values[value].operand, self._places[memory])
            for value, memory in enumerate(placed.memories)
            if value in needed and memory in self._places and code.values[value].origin != "made"
        }

    def _carried_out(
        self,
        kernels: tuple[Kernel, ...],
        code: Code,
        buffers: dict[int, Buffer],
        *,
        kept: Iterable[int] = (),
        donated: Iterable[int] = (),
    ) -> dict[int, Buffer]:
        """Runs a graph; gives the buffers of what it gives back. Over any other that it made, or was left, a
        kernel may write."""
        wanted = set(kept) | {i for i, value in enumerate(code.values) if value.leaves}
        # A train step holds more, later, than the first launches of its kernels did.
        tuning = self._capture.pass_ != "train_step" and kernels not in self._tuned
        self._tuned.add(kernels)
        return carried_out(
            self._line, kernels, buffers, wanted, donated=set(donated), tuning=tuning
        )

    def _leave(self, placed: Placed, code: Code, results: dict[int, Buffer]) -> None:
        """Lets the results of a part stay as long as whoever has them."""
        for value, buffer in results.items():
            if not code.values[value].leaves:
                continue
            memory = placed.memories[value]
            assert memory is not None
            self._places[memory] = buffer.place
            lifetime = self._capture.lifetimes[memory]
            if lifetime.held_for == "gradients":
                self._line.gradients(buffer.place)
            elif memory in self._step.parts.read_outside:
                self._held[self._step.parts.read_outside[memory]].append(buffer.place)
            elif memory not in self._step.parts.handed_on:
                self._held[lifetime.last].append(buffer.place)


def _read(kernels: Iterable[Kernel]) -> set[int]:
    return {each.value for kernel in kernels for each in kernel.reads}


def _inside(placed: Placed) -> Iterable[int]:
    for span in (placed.forward_at, placed.backward_at):
        if span is not None:
            yield from range(span[0], span[1] + 1)
