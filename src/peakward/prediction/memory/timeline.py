"""When each tensor of a step is made, and when it is used for the last time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

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


class Timeline:
    """Tensors by number. Time goes on by one with each operator, whose operands and results are
    there at once; a tensor is gone after the last operator that uses it."""

    def __init__(self) -> None:
        self.phases: list[MemoryPhase] = []
        """Of each operator."""
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

    def tensors(self) -> list[Tensor]:
        """All of them, in the order in which they are made."""
        last = list(self._last)
        for each in (*self._kept, *self._gradients):
            last[each] = len(self.phases) - 1
        return list(map(Tensor, self._n_bytes, self._categories, self._made, last))

    def enter(self, phase: MemoryPhase) -> None:
        """What comes next belongs to this phase."""
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

    def _new(self, n_bytes: int, category: Category, now: int) -> int:
        self._n_bytes.append(n_bytes)
        self._categories.append(category)
        self._made.append(now)
        self._last.append(now)
        return len(self._last) - 1
