"""Runs of blocks that are alike: the first and the last are walked, those between repeat their neighbour.

A model of 32 blocks then costs what one of 4 does: a walk of one takes some 0.3 ms, and every plan asks
for thousands.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from peakward.prediction.memory.timeline import Mark, Saved, Timeline

S = TypeVar("S")
_LEAST = 7
"""Runs of which there is one between the three first and the three last ones."""


class Passes(Generic[S]):
    """Forward passes of n runs that are alike, and then their backward passes."""

    def __init__(self, line: Timeline, n: int) -> None:
        self._line, self._n = line, n
        self._saved: dict[int, S] = {}
        self._starts: dict[int, int] = {}

    def forward(self, x: int, walk: Callable[[int, int], tuple[S, int]]) -> int:
        """What goes into the first → what comes out of the last.

        Args:
            x: the residual stream.
            walk: carries out the run of that index: input → what it saves, and its result.
        """
        marks: list[Mark] = []
        for i in range(self._n):
            between = self._n - 6
            if i == 3 and self._n >= _LEAST:
                # The first run's input is not a run's result, and its code may be tuned as it runs.
                x += between * self._line.again(marks[1], marks[2], between)
            if i < 3 or i >= self._n - 3 or self._n < _LEAST:
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
        for i in reversed(range(self._n)):
            between = self._n - 5
            if i == 1 and self._n >= _LEAST:
                start, stop = self._starts[self._n - 3], self._starts[self._n - 2]
                passes = Saved(2 * start - stop, stop, stop - start)
                shift = self._line.again(marks[1], marks[2], between, passes)
                if gradient >= marks[2].n_tensors:
                    gradient += between * shift
            if i in self._saved and (i != 2 or self._n < _LEAST):
                marks.append(self._line.mark())
                gradient = walk(self._saved[i], gradient)
        return gradient
