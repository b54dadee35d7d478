"""The most that a timeline holds, and for what: its tensors one by one through torch's caching allocator."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from peakward.prediction.memory.timeline import Lifetimes
from peakward.records.memory import MemoryPhase, MemorySplit

# torch's caching allocator, as far as it decides how much memory a process holds.
#
# After c10/cuda/CUDACachingAllocator.{h,cpp} of torch 2.11 with its default settings, for one stream:
# the best fit among free blocks, else a new segment; a block is split where the rest is worth it,
# and merged with its free neighbours when it is given back. Segments stay reserved until a request
# would go over the limit; then those that are wholly free are returned.

MIB = 2**20
BLOCK_BYTES = 512
"""kMinBlockSize: every request is rounded up to a multiple."""
SMALL_BYTES = MIB
"""kSmallSize: up to here a request comes from segments of its own kind; of a large block, a rest up
to here is not split off."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""kSmallBuffer; also kRoundLarge, of which the largest segments are multiples."""
SHARED_SEGMENT_BYTES = 20 * MIB
"""kLargeBuffer: the segment of a request below `OWN_SEGMENT_BYTES`."""
OWN_SEGMENT_BYTES = 10 * MIB
"""kMinLargeAlloc: from here a request gets a segment of its own size."""

_ADDRESS_BITS, _SEGMENT_BITS = 80, 20
"""Bits of a free block's key: they hold segments of 1 YiB, more than any score matrix that can be asked
for, and a million of them."""


class OverLimitError(Exception):
    """A request that does not fit the limit, even after all free segments are returned."""


class Block:
    """A stretch of a segment, free or in use."""

    __slots__ = ("address", "after", "before", "key", "n_bytes", "segment", "small")

    def __init__(self, n_bytes: int, segment: int, address: int, *, small: bool) -> None:
        self.n_bytes, self.segment, self.address, self.small = n_bytes, segment, address, small
        self.before: Block | None = None
        self.after: Block | None = None
        self.key: int | None = None
        """While it is free: its size, segment and address as one number, unique and in the order in
        which blocks are tried. A list of such numbers is searched twice as fast as one of tuples."""


class CachingAllocator:
    """Blocks of a device of which at most `limit_bytes` may be reserved; None is no limit."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.reserved_bytes = 0
        self.most_reserved_bytes = 0
        self._limit_bytes = limit_bytes
        self.was_at_limit = False
        self._free: dict[bool, list[int]] = {True: [], False: []}
        self._by_key: dict[int, Block] = {}
        self._n_segments = 0

    def take(self, n_bytes: int) -> Block:
        """A block of at least so many bytes.

        Raises:
            OverLimitError: there is none within the limit.
        """
        size = -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES or BLOCK_BYTES
        small = size <= SMALL_BYTES
        free = self._free[small]
        place = bisect_left(free, size << _ADDRESS_BITS + _SEGMENT_BITS)
        if place < len(free):
            block = self._by_key.pop(free.pop(place))
            block.key = None
        else:
            block = self._new_segment(size, small=small)
        rest = block.n_bytes - size
        if rest >= BLOCK_BYTES if small else rest > SMALL_BYTES:
            self._split(block, size)
        return block

    def give_back(self, block: Block) -> None:
        """The block is free, as one with its free neighbours."""
        for other in (block.before, block.after):
            if other is not None and other.key is not None:
                self._forget(other)
                self._merge(block, other)
        self._remember(block)

    def _new_segment(self, size: int, *, small: bool) -> Block:
        n_bytes = SMALL_SEGMENT_BYTES if small else SHARED_SEGMENT_BYTES
        if size >= OWN_SEGMENT_BYTES:
            n_bytes = -(-size // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES
        limit = self._limit_bytes
        if limit is not None and self.reserved_bytes + n_bytes > limit:
            self._return_free_segments()
            if self.reserved_bytes + n_bytes > limit:
                raise OverLimitError
        self.reserved_bytes += n_bytes
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)
        self._n_segments += 1
        return Block(n_bytes, self._n_segments, 0, small=small)

    def _return_free_segments(self) -> None:
        self.was_at_limit = True
        for block in list(self._by_key.values()):
            if block.before is None and block.after is None:
                self._forget(block)
                self.reserved_bytes -= block.n_bytes

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.n_bytes - size, block.segment, block.address + size, small=block.small)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.n_bytes, block.after = size, rest
        self._remember(rest)

    def _merge(self, block: Block, other: Block) -> None:
        if other is block.before:
            block.address, block.before = other.address, other.before
            if other.before is not None:
                other.before.after = block
        else:
            block.after = other.after
            if other.after is not None:
                other.after.before = block
        block.n_bytes += other.n_bytes

    def _remember(self, block: Block) -> None:
        size_and_segment = (block.n_bytes << _SEGMENT_BITS) + block.segment
        block.key = key = (size_and_segment << _ADDRESS_BITS) + block.address
        self._by_key[key] = block
        insort(self._free[block.small], key)

    def _forget(self, block: Block) -> None:
        assert block.key is not None
        free = self._free[block.small]
        del free[bisect_left(free, block.key)], self._by_key[block.key]
        block.key = None


# A timeline, tensor by tensor through the allocator.


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
