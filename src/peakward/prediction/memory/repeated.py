"""Runs of blocks that are alike: the first and the last are walked, those between repeat their neighbour.

A model of 32 blocks then costs what one of 4 does: a walk of one takes some 0.5 ms, and every plan asks
for thousands.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from peakward.prediction.memory.timeline import Mark, Saved, Timeline

S = TypeVar("S")


class Passes(Generic[S]):
    """Forward passes of n runs that are alike, and then their backward passes.

    What the first one is given is no run's result, so that the second is the one to repeat; where the code of
    the first one is tuned as it runs, forward or backward, the third.
    """

    def __init__(self, line: Timeline, n: int, *, tuned: bool = False) -> None:
        self._line, self._n = line, n
        self._walked = 3 if tuned else 2
        """At either end, where there is one between them."""
        self._repeats = n > 2 * self._walked
        self._saved: dict[int, S] = {}
        self._starts: dict[int, int] = {}

    def forward(self, x: int, walk: Callable[[int, int], tuple[S, int]]) -> int:
        """Input of the first run → result of the last.

        Args:
            x: the residual stream.
            walk: carries out the run of that index: input → what it saves, and its result.
        """
        marks: list[Mark] = []
        between = range(self._walked, self._n - self._walked) if self._repeats else range(0)
        for i in range(self._n):
            if between and i == between.start:
                x += len(between) * self._line.again(marks[-2], marks[-1], len(between))
            if i not in between:
                marks.append(self._line.mark())
                self._starts[i] = marks[-1].n_tensors
                self._saved[i], x = walk(i, x)
        return x

    def backward(self, gradient: int, walk: Callable[[S, int], int]) -> int:
        """Gradient behind the last → before the first.

        Args:
            gradient: of the residual stream.
            walk: what a run saved and the gradient behind it → before it.
        """
        marks: list[Mark] = []
        last = self._n - self._walked
        between = range(self._walked - 1, last) if self._repeats else range(0)
        for i in reversed(range(self._n)):
            if between and i == between.start:
                start, stop = self._starts[last], self._starts[last + 1]
                passes = Saved(2 * start - stop, stop, stop - start)
                shift = self._line.again(marks[-2], marks[-1], len(between), passes)
                if gradient >= marks[-1].n_tensors:
                    gradient += len(between) * shift
            if i not in between:
                marks.append(self._line.mark())
                gradient = walk(self._saved[i], gradient)
        return gradient
