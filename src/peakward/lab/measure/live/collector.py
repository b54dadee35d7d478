"""Measures how long Python's garbage collector stops the process, by its own callbacks."""

import gc
from collections.abc import Callable
from typing import NamedTuple


class Collected(NamedTuple):
    """The number of collections and their seconds."""

    n: int
    total_s: float
    longest_s: float


NONE = Collected(0, 0.0, 0.0)


class Collector:
    """Times every collection between `start` and `stop`, whichever thread began it: the interpreter's
    lock stops all threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self._since = NONE

    def start(self) -> None:
        """Begins to time collections."""
        gc.callbacks.append(self._called)

    def stop(self) -> None:
        """Stops, and leaves the interpreter's callbacks as they were."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def total_s(self) -> float:
        """The seconds of the collections that are not taken yet."""
        return self._since.total_s

    def taken(self) -> Collected:
        """The collections since the last call."""
        since, self._since = self._since, NONE
        return since

    def _called(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = self._clock()
        elif self._began_s is not None:
            span_s, self._began_s = self._clock() - self._began_s, None
            # Sums, not a list: a worker forked from this process calls this too, and takes nothing.
            n, total_s, longest_s = self._since
            self._since = Collected(n + 1, total_s + span_s, max(longest_s, span_s))
