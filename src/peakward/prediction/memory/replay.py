"""A timeline, tensor by tensor through the allocator: what is held at most, and for what."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from peakward.prediction.memory.allocator import Block, CachingAllocator, OverLimitError
from peakward.prediction.memory.timeline import Lifetimes
from peakward.records.memory import MemoryPhase, MemorySplit


class Replay(NamedTuple):
    """The memory of a whole timeline."""

    phase: MemoryPhase
    """In which the most is allocated."""
    split: MemorySplit
    """Then."""
    reserved_bytes: int
    """The most at any time."""
    was_at_limit: bool = False
    """Whether free segments had to be returned for it."""


class Replays:
    """Replays of one step's tensors, under any limits; none is made twice."""

    def __init__(self, step: Lifetimes) -> None:
        self._step = step
        self._free: Replay | None = None
        self._limited: dict[int, Replay | None] = {}

    def free(self) -> Replay:
        """The step where nothing limits it."""
        if self._free is None:
            self._free = replay(self._step)
        return self._free

    def within(self, limit_bytes: int) -> Replay | None:
        """None where more than the limit has to be reserved.

        Tensors that are there at once have to be reserved, so that most sizes that do not fit need no
        replay; and a replay that never comes to its limit is the one without.
        """
        if self._free is not None and self._free.reserved_bytes <= limit_bytes:
            return self._free
        if limit_bytes not in self._limited:
            self._limited[limit_bytes] = self._replayed_within(limit_bytes)
        return self._limited[limit_bytes]

    def _replayed_within(self, limit_bytes: int) -> Replay | None:
        if most_held(self._step) > limit_bytes:
            return None
        try:
            found = replay(self._step, limit_bytes)
        except OverLimitError:
            return None
        if not found.was_at_limit:
            self._free = found
        return found


def replay(step: Lifetimes, limit_bytes: int | None = None) -> Replay:
    """Takes every tensor when it is made, and gives it back after its last use.

    Raises:
        OverLimitError: more than the limit has to be reserved.
    """
    last, allocator = step.last, CachingAllocator(limit_bytes)
    ends = sorted(range(len(last)), key=last.__getitem__)
    blocks: list[Block] = []
    taken: list[int] = []
    held, peak, at, n_gone = 0, 0, 0, 0
    for n_bytes, made in zip(step.n_bytes, step.made, strict=True):
        while last[ended := ends[n_gone]] < made:
            held -= taken[ended]
            allocator.give_back(blocks[ended])
            n_gone += 1
        block = allocator.take(n_bytes)
        blocks.append(block)
        taken.append(block.n_bytes)
        held += block.n_bytes
        if held > peak:
            peak, at = held, made
    return Replay(
        step.phases[at],
        _split(step, taken, at),
        allocator.most_reserved_bytes,
        allocator.was_at_limit,
    )


def most_held(step: Lifetimes) -> int:
    """The most bytes of tensors that are there at once: no less is ever reserved."""
    changes = [0] * (len(step.phases) + 1)
    for n_bytes, made, last in zip(step.n_bytes, step.made, step.last, strict=True):
        changes[made] += n_bytes
        changes[last + 1] -= n_bytes
    return max(accumulate(changes))


def _split(step: Lifetimes, taken: Sequence[int], at: int) -> MemorySplit:
    sums: dict[str, int] = {}
    rounding = 0
    for i, (made, last) in enumerate(zip(step.made, step.last, strict=True)):
        if made <= at <= last:
            n_bytes, category = step.n_bytes[i], step.categories[i]
            sums[category] = sums.get(category, 0) + n_bytes
            rounding += taken[i] - n_bytes
    by_field = {f"{category}_bytes": n_bytes for category, n_bytes in sums.items()}
    return MemorySplit(**by_field, rounding_bytes=rounding)
