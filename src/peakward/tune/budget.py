"""How much of the allowed time is left."""

import time
from collections.abc import Callable


class Budget:
    """A stretch of wall time that began when it was made.

    Whoever asks `allows` says what the next action should cost; an action once begun runs to its
    end, so a run may outlast its budget by as much as one estimate was wrong.
    """

    def __init__(self, total_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_s = total_s
        self._clock = clock
        self._start_s = clock()

    def spent_s(self) -> float:
        """Since the beginning."""
        return self._clock() - self._start_s

    def allows(self, cost_s: float, *, reserve_s: float = 0.0) -> bool:
        """Whether something of this cost still fits, with the reserve untouched."""
        return self.spent_s() + cost_s + reserve_s <= self.total_s
