"""How much of the allowed time is left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from peakward.records.errors import OutOfTimeError, PeakwardError
from peakward.report.format import format_duration

BASELINE_S = 60.0
"""For the ceilings and the baseline, however small the budget: without them there is nothing to show."""


class Budget:
    """A stretch of wall time that began when it was made.

    Whoever asks `allows` says what the next action should cost. Such estimates may be wrong, as on a
    machine that others use too: what is asked of the workers is ended when `left_s` is over.
    """

    def __init__(self, total_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_s = total_s
        self._clock = clock
        self._start_s = clock()

    def spent_s(self) -> float:
        """Since the beginning."""
        return self._clock() - self._start_s

    def left_s(self) -> float:
        """Until the end; below 0 after it."""
        return self.total_s - self.spent_s()

    def left_for_the_baseline_s(self) -> float:
        """The same, but at least `BASELINE_S` from the beginning."""
        return max(self.left_s(), BASELINE_S - self.spent_s())

    def allows(self, cost_s: float, *, reserve_s: float = 0.0) -> bool:
        """Whether something of this cost still fits, with the reserve untouched."""
        return self.spent_s() + cost_s + reserve_s <= self.total_s

    @contextmanager
    def for_the_baseline(self) -> Iterator[None]:
        """Around what a run cannot do without.

        Raises:
            PeakwardError: the time ended in the block.
        """
        try:
            yield
        except OutOfTimeError as error:
            raise PeakwardError(
                f"expected a budget in which the baseline can be measured, got "
                f"{format_duration(self.total_s)}: {error}; give a larger one, or a smaller case"
            ) from None
