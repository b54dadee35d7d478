"""A timeline, tensor by tensor through the allocator: what is held at most, and for what."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from peakward.prediction.memory.allocator import Block, CachingAllocator
from peakward.prediction.memory.timeline import Tensor
from peakward.records.memory import MemoryPhase, MemorySplit


class Replay(NamedTuple):
    """Of a whole timeline."""

    phase: MemoryPhase
    """In which the most is allocated."""
    split: MemorySplit
    """Then."""
    reserved_bytes: int
    """The most at any time."""
    was_at_limit: bool = False
    """Whether free segments had to be returned for it."""


class Lived(Protocol):
    """Tensors and the operators among which they come and go, as a `Timeline` has them."""

    @property
    def phases(self) -> Sequence[MemoryPhase]:
        """Of each operator."""
        ...

    def tensors(self) -> list[Tensor]:
        """All of them."""
        ...


def replay(line: Lived, limit_bytes: int | None = None) -> Replay:
    """Every tensor taken when it is made, and given back after its last use.

    Raises:
        OverLimitError: more than the limit has to be reserved.
    """
    tensors, allocator = line.tensors(), CachingAllocator(limit_bytes)
    last = [each.last for each in tensors]
    ends = sorted(range(len(tensors)), key=last.__getitem__)
    blocks: list[Block] = []
    taken: list[int] = []
    held, peak, at, n_gone = 0, 0, 0, 0
    for n_bytes, _, made, _ in tensors:
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
        line.phases[at],
        _split(tensors, taken, at),
        allocator.most_reserved_bytes,
        allocator.was_at_limit,
    )


def most_held(line: Lived) -> int:
    """The most bytes of tensors that are there at once: no less is ever reserved."""
    changes = [0] * (len(line.phases) + 1)
    for n_bytes, _, made, last in line.tensors():
        changes[made] += n_bytes
        changes[last + 1] -= n_bytes
    return max(accumulate(changes))


def _split(tensors: list[Tensor], taken: list[int], at: int) -> MemorySplit:
    sums: dict[str, int] = {}
    rounding = 0
    for (n_bytes, category, made, last), taken_bytes in zip(tensors, taken, strict=True):
        if made <= at <= last:
            sums[category] = sums.get(category, 0) + n_bytes
            rounding += taken_bytes - n_bytes
    by_field = {f"{category}_bytes": n_bytes for category, n_bytes in sums.items()}
    return MemorySplit(**by_field, rounding_bytes=rounding)
