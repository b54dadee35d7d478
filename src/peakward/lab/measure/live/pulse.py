"""The times of a loop's steps as they come, in bounded memory, and its garbage collections."""

import gc
from collections.abc import Callable
from statistics import median, quantiles
from typing import NamedTuple

import msgspec

from peakward.records.loop import LoopTimes, Pauses
from peakward.stats.steady import trend

SAMPLE = 512
"""The least number of steps kept, once there were as many: their median repeats to 5% of the spread."""
FIRST = 3
"""The number of first steps that are left out: they allocate the optimiser's state, choose kernels and
compile."""
PAUSE = 3.0
"""The multiple of the median from which on a step is a pause."""
LEAST = 8
"""The least number of steps whose median is used."""
REFRESH = 32
"""The number of steps between two looks at the median, which takes 40 µs for a full sample."""
LEAST_TREND = 5


class Collected(NamedTuple):
    """The number of collections and their seconds."""

    n: int
    total_s: float
    longest_s: float


NONE = Collected(0, 0.0, 0.0)


class Pulse:
    """The times of a loop. It keeps every `stride`-th step; where the sample is full, every second one
    of it is dropped."""

    def __init__(self) -> None:
        self._seen = 0
        self._n, self._total_s, self._waited_s = 0, 0.0, 0.0
        self._n_collections, self._collected_s, self._longest_collection_s = 0, 0.0, 0.0
        self._sample: list[float] = []
        self._stride = 1
        self._median_s: float | None = None
        self._pauses = Pauses()

    def add(self, step_s: float, *, waited_s: float = 0.0, collected: Collected = NONE) -> None:
        """Adds one step.

        Args:
            step_s: The time of the step.
            waited_s: The part of it spent waiting for data, without collections.
            collected: The part of it in the garbage collector.
        """
        self._seen += 1
        if self._seen <= FIRST:
            return
        self._n += 1
        self._total_s += step_s
        self._waited_s += waited_s
        self._n_collections += collected.n
        self._collected_s += collected.total_s
        self._longest_collection_s = max(self._longest_collection_s, collected.longest_s)
        if self._median_s is not None and step_s >= PAUSE * self._median_s:
            self._pause(step_s, step_s - self._median_s, waited_s, collected.total_s)
        self._keep(step_s)

    def times(self, *, draws: bool, n_windows: int, windows_s: float) -> LoopTimes:
        """The times of all steps until now; `draws` says whether batches are drawn through the watch."""
        sample = self._sample
        moved = trend(sample) if len(sample) >= LEAST_TREND else None
        quarters = quantiles(sample, n=4) if len(sample) >= 4 else None
        return LoopTimes(
            n_steps=self._n,
            total_s=self._total_s,
            median_s=median(sample) if sample else None,
            spread_s=None if quarters is None else quarters[2] - quarters[0],
            change=None if moved is None else moved.change,
            change_p_value=None if moved is None else moved.p_value,
            waited_s=self._waited_s if draws else None,
            n_collections=self._n_collections,
            collected_s=self._collected_s,
            longest_collection_s=self._longest_collection_s,
            pauses=self._pauses,
            n_windows=n_windows,
            windows_s=windows_s,
        )

    def _pause(self, step_s: float, beyond_s: float, waited_s: float, collected_s: float) -> None:
        waited_s = min(waited_s, beyond_s)
        before = self._pauses
        self._pauses = msgspec.structs.replace(
            before,
            n=before.n + 1,
            beyond_s=before.beyond_s + beyond_s,
            waited_s=before.waited_s + waited_s,
            collected_s=before.collected_s + min(collected_s, beyond_s - waited_s),
            longest_s=max(before.longest_s, step_s),
        )

    def _keep(self, step_s: float) -> None:
        if self._n % self._stride == 0:
            self._sample.append(step_s)
            if len(self._sample) == 2 * SAMPLE:
                self._stride *= 2
                self._sample = self._sample[1::2]
        if self._n == LEAST or self._n % REFRESH == 0:
            self._median_s = median(self._sample)


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
