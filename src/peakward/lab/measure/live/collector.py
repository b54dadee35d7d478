"""How long Python's garbage collector stops the process, by its own callbacks."""

import gc
from collections.abc import Callable


class Collector:
    """Times every collection between `start` and `stop`, whichever thread began it: the interpreter's
    lock stops all of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self._spans_s: list[float] = []

    def start(self) -> None:
        """From now on."""
        gc.callbacks.append(self._called)

    def stop(self) -> None:
        """And leave the interpreter's callbacks as they were."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def total_s(self) -> float:
        """Of those that are not taken yet."""
        return sum(self._spans_s)

    def taken_s(self) -> tuple[float, ...]:
        """Those since the last time, each."""
        if not self._spans_s:
            return ()
        spans, self._spans_s = self._spans_s, []
        return tuple(spans)

    def _called(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = self._clock()
        elif self._began_s is not None:
            self._spans_s.append(self._clock() - self._began_s)
            self._began_s = None
