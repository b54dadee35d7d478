"""When each tensor of a step is made, and when it is used for the last time."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, compress
from typing import Literal, NamedTuple, Self

from peakward.records.memory import MemoryPhase

Category = Literal[
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "logits",
    "weight_casts",
    "temporaries",
    "inputs",
    "cache",
    "workspace",
]


class Tensor(NamedTuple):
    """There from the operator that makes it to the last one that uses it, both included."""

    n_bytes: int
    category: Category
    made: int
    last: int


class Lifetimes(NamedTuple):
    """All tensors of a step in the order in which they are made, a column for each of their figures."""

    n_bytes: Sequence[int]
    categories: Sequence[Category]
    made: Sequence[int]
    last: Sequence[int]
    phases: Sequence[MemoryPhase]
    """The phase of each operator."""

    @classmethod
    def of(cls, tensors: Iterable[Tensor], phases: Sequence[MemoryPhase]) -> Self:
        """These tensors, in the order in which they are made."""
        n_bytes, categories, made, last = zip(*tensors, strict=True)
        return cls(n_bytes, categories, made, last, phases)

    def tensors(self) -> list[Tensor]:
        """The same, one by one."""
        return list(map(Tensor, self.n_bytes, self.categories, self.made, self.last))


class Saved(NamedTuple):
    """Tensors of two forward passes, the older of which gave the younger its input."""

    start: int
    stop: int
    stride: int
    """Between the tensors of one pass and the like ones of the next."""


class Mark(NamedTuple):
    """How much of a timeline there is."""

    n_tensors: int
    n_operators: int
    n_kept: int
    n_gradients: int


class Timeline:
    """Tensors by number. Time goes on by one with each operator, whose operands and results are
    there at once; a tensor is gone after the last operator that uses it."""

    def __init__(self) -> None:
        self.phases: list[MemoryPhase] = []
        """The phase of each operator."""
        self._n_bytes: list[int] = []
        self._categories: list[Category] = []
        self._made: list[int] = []
        self._last: list[int] = []
        self._phase: MemoryPhase = "build"
        self._kept: list[int] = []
        self._gradients: list[int] = []
        self._accumulates = False
        self._remembered: list[int] | None = None
        self._recalled: list[int] = []

    def lifetimes(self) -> Lifetimes:
        """All tensors so far; what is kept is there until now."""
        last = list(self._last)
        for each in (*self._kept, *self._gradients):
            last[each] = len(self.phases) - 1
        return Lifetimes(self._n_bytes, self._categories, self._made, last, self.phases)

    def enter(self, phase: MemoryPhase) -> None:
        """Later operators belong to this phase."""
        self._phase = phase

    def op(self, n_bytes: int, *uses: int, category: Category = "temporaries") -> int:
        """An operator with one result."""
        self.phases.append(self._phase)
        now = len(self.phases) - 1
        for each in uses:
            self._last[each] = now
        return self._new(n_bytes, category, now)

    def ops(
        self, sizes: Iterable[int], *uses: int, category: Category = "temporaries"
    ) -> tuple[int, ...]:
        """An operator with several results, or with temporaries of its own."""
        self.phases.append(self._phase)
        self.use(*uses)
        now = len(self.phases) - 1
        return tuple([self._new(n_bytes, category, now) for n_bytes in sizes])

    def use(self, *tensors: int) -> None:
        """They are there until now."""
        for each in tensors:
            self._last[each] = len(self.phases) - 1

    def keep(self, *tensors: int) -> None:
        """They are there until the end."""
        self._kept += tensors

    def saved(self, *tensors: int) -> tuple[int, ...]:
        """The same tensors, which the forward pass has kept for the backward pass."""
        for each in tensors:
            if self._categories[each] == "temporaries":
                self._categories[each] = "activations"
        return tensors

    def gradient(self, n_bytes: int, *uses: int) -> None:
        """An operator that makes a parameter's gradient: the first one stays, later ones are added
        to it."""
        if self._accumulates:
            self.op(n_bytes, *uses)
        else:
            self._gradients.append(self.op(n_bytes, *uses, category="gradients"))

    def gradients(self, *tensors: int) -> None:
        """They are parameters' gradients: the first of each stays, later ones are added to it."""
        self.use(*tensors)
        if not self._accumulates:
            for each in tensors:
                self._categories[each] = "gradients"
            self._gradients += tensors

    def accumulate(self) -> None:
        """From now on every parameter has its gradient."""
        self._accumulates = True

    def drop_gradients(self) -> None:
        """No parameter has one any more."""
        self.use(*self._gradients)
        self._gradients, self._accumulates = [], False

    def dear(
        self, sizes: Iterable[int], *uses: int, category: Category = "temporaries"
    ) -> tuple[int, ...]:
        """As `ops`, of an operator whose results selective checkpointing keeps."""
        if self._recalled:
            sizes = list(sizes)
            found = tuple(self._recalled[: len(sizes)])
            del self._recalled[: len(sizes)]
            self.ops((), *uses, *self.saved(*found))
            return found
        made = self.ops(sizes, *uses, category=category)
        if self._remembered is not None:
            self._remembered += made
        return made

    @contextmanager
    def remembering(self, dear: list[int]) -> Iterator[None]:
        """Inside, the results of dear operators are added to the list."""
        self._remembered = dear
        yield
        self._remembered = None

    @contextmanager
    def recalling(self, dear: tuple[int, ...]) -> Iterator[list[int]]:
        """Inside, dear operators do not run again: their results are these, in order. Gives those
        that were not asked for yet."""
        self._recalled = list(dear)
        yield self._recalled
        self._recalled = []

    def mark(self) -> Mark:
        """The place at which later operators begin."""
        return Mark(len(self._last), len(self.phases), len(self._kept), len(self._gradients))

    def again(self, before: Mark, since: Mark, n: int, saved: Saved | None = None) -> int:
        """Do what was done since the second mark n more times; gives how many tensors each makes.

        Each time works on what the time before made. What was done between the two marks is the time
        before the first, so that tensors made there move on with each time as all later ones do.

        Args:
            before: where the time before begins.
            since: where the time begins that is done again.
            n: times.
            saved: forward passes, each of which is used by one time, the last one first.
        """
        made = range(since.n_tensors, len(self._last))
        ops = range(since.n_operators, len(self.phases))
        n_bytes, categories = self._n_bytes[made.start :], self._categories[made.start :]
        when, last = self._made[made.start :], self._last[made.start :]
        phases = self.phases[ops.start :]
        kept, gradients = self._kept[since.n_kept :], self._gradients[since.n_gradients :]
        used = self._used_since(before.n_tensors, since)
        far = self._used_since(0, since, before.n_tensors)
        passes, stride = range(0), 0
        if saved is not None:
            passes, stride = range(saved.start, saved.stop), saved.stride
        held = [(each, self._last[each], self._categories[each]) for each in passes]
        for time in range(1, n + 1):
            tensors, later = time * len(made), time * len(ops)
            for each, end in used:
                self._last[each + tensors] = end + later
            for each, end, category in held:
                self._categories[each - time * stride] = category
                if end >= ops.start:
                    self._last[each - time * stride] = end + later
            self._n_bytes += n_bytes
            self._categories += categories
            self._made += [each + later for each in when]
            self._last += [each + later for each in last]
            self.phases += phases
            self._kept += [each + tensors for each in kept]
            self._gradients += [each + tensors for each in gradients]
        for each, end in far:
            if each not in passes:
                self._last[each] = end + n * len(ops)
        return len(made)

    def repeat(self, start: Mark, stop: Mark) -> None:
        """Do again what was done between two marks, where it worked on tensors of its own alone. A workspace
        that was added there is there by now."""
        ops = range(start.n_operators, stop.n_operators)
        added = {
            self._made[each]
            for each in range(start.n_tensors, stop.n_tensors)
            if self._categories[each] == "workspace"
        }
        again, now = [each not in added for each in ops], len(self.phases)
        when = [now + n for n in accumulate(again, initial=0)]
        self.phases += compress(self.phases[ops.start : ops.stop], again)
        made = [
            each
            for each in range(start.n_tensors, stop.n_tensors)
            if self._categories[each] != "workspace"
        ]
        categories, n_tensors = [self._categories[each] for each in made], len(self._last)
        self._n_bytes += [self._n_bytes[each] for each in made]
        self._categories += categories
        self._made += [when[self._made[each] - ops.start] for each in made]
        # A gradient was there for longer: until the step behind dropped it.
        ends = [min(self._last[each], ops.stop - 1) for each in made]
        self._last += [when[each - ops.start] for each in ends]
        self._gradients += [
            n_tensors + i for i, category in enumerate(categories) if category == "gradients"
        ]

    def _used_since(self, start: int, since: Mark, end: int | None = None) -> list[tuple[int, int]]:
        """Earlier tensors that were used since then, and when last."""
        earlier = range(start, since.n_tensors if end is None else end)
        return [(i, self._last[i]) for i in earlier if self._last[i] >= since.n_operators]

    def _new(self, n_bytes: int, category: Category, now: int) -> int:
        self._n_bytes.append(n_bytes)
        self._categories.append(category)
        self._made.append(now)
        self._last.append(now)
        return len(self._last) - 1


# The workspaces of cuBLAS.

WORKSPACE_BYTES = 32 * 2**20
"""From the allocator, for each thread and stream that multiplies: torch's figure for compute
capability 9 (`getChosenWorkspaceSize` in ATen/cuda/CublasHandlePool.cpp)."""


def workspace(line: Timeline) -> None:
    """Adds the workspace of another thread or stream, which lasts from its first product on."""
    line.keep(line.op(WORKSPACE_BYTES, category="workspace"))
