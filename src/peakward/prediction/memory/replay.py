"""A timeline, tensor by tensor through the allocator: what is held at most, and for what."""

from collections.abc import Sequence
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
    gone = _by_end(tensors, len(line.phases))
    blocks: list[Block] = []
    taken: list[int] = []
    held, reserved, peak, at = 0, 0, 0, 0
    for now, ended in enumerate(gone):
        while len(blocks) < len(tensors) and tensors[len(blocks)].made == now:
            block = allocator.take(tensors[len(blocks)].n_bytes)
            blocks.append(block)
            taken.append(block.n_bytes)
            held += block.n_bytes
        reserved = max(reserved, allocator.reserved_bytes)
        if held > peak:
            peak, at = held, now
        for each in ended:
            held -= taken[each]
            allocator.give_back(blocks[each])
    return Replay(line.phases[at], _split(tensors, taken, at), reserved)


def _by_end(tensors: list[Tensor], n: int) -> list[list[int]]:
    """At each time the tensors that are used for the last time."""
    gone: list[list[int]] = [[] for _ in range(n)]
    for i, each in enumerate(tensors):
        gone[each.last].append(i)
    return gone


def _split(tensors: list[Tensor], taken: list[int], at: int) -> MemorySplit:
    sums: dict[str, int] = {}
    rounding = 0
    for each, n_bytes in zip(tensors, taken, strict=True):
        if each.made <= at <= each.last:
            field = f"{each.category}_bytes"
            sums[field] = sums.get(field, 0) + each.n_bytes
            rounding += n_bytes - each.n_bytes
    return MemorySplit(**sums, rounding_bytes=rounding)
