"""Whether a case fits the memory of one GPU of a group, and the largest batch that does."""

from typing import NamedTuple

import msgspec

from peakward.prediction.communication.memory import added_bytes
from peakward.prediction.memory.fit import fits, largest_batch
from peakward.prediction.memory.peak import CONTEXT_BYTES, peak_memory
from peakward.prediction.planning.attempt import Attempts
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.memory import MemoryPrediction

COMPILED_SHARE = (0.83, 1.08)
"""Peak memory of a compiled step over the eager one's: of 72 cases on an H200."""


class Room(NamedTuple):
    """None: not computed."""

    needed_bytes: int | None
    fits: bool | None


def room(case: ModelCase, memory: MemoryPrediction, on: Site, attempts: Attempts) -> Room:
    """Of one GPU. Near the limit the allocator returns what it has free, so that a case may fit that
    would have reserved more."""
    added, limit = _added(case, on), on.limit_bytes(case.memory_limit_bytes)
    if memory.reserved_bytes is None:
        return _room_of_other_basis(case, added, limit, attempts)
    needed = memory.reserved_bytes + memory.context_bytes + added
    if needed <= limit:
        return Room(needed, True)
    if memory.peak_bytes + memory.context_bytes + added > limit:
        return Room(needed, False)
    return Room(needed, fits(case, limit - added))


def largest_batch_size(case: ModelCase, on: Site) -> int:
    """Of one GPU; 0 where not a single sequence fits.

    Raises:
        PeakwardError: a setting whose memory is not predicted.
    """
    return largest_batch(case, on.limit_bytes(case.memory_limit_bytes) - _added(case, on))


def _added(case: ModelCase, on: Site) -> int:
    return 0 if on.group is None else added_bytes(case, on.group)


def _room_of_other_basis(case: ModelCase, added: int, limit: int, attempts: Attempts) -> Room:
    """Compiled code: between what it has been seen to need beside the eager step."""
    if case.configuration.cuda_graphs:
        attempts.without("needed memory", "a CUDA graph has a pool of its own, of unknown size")
        return Room(None, None)
    attempts.without("needed memory", "of compiled code only the range beside eager code is known")
    eager = peak_memory(_eager(case))
    assert eager.reserved_bytes is not None
    low, high = (CONTEXT_BYTES + added + share * eager.reserved_bytes for share in COMPILED_SHARE)
    return Room(None, True if high <= limit else False if low > limit else None)


def _eager(case: ModelCase) -> ModelCase:
    settings = msgspec.structs.replace(case.configuration, compile="none")
    return msgspec.structs.replace(case, configuration=settings)
