"""Whether a case fits the memory of one GPU of a group, and the largest batch that does."""

from typing import NamedTuple

import msgspec

from peakward.prediction.memory.fit import fits, largest_batch, longest_sequence
from peakward.prediction.memory.peak import (
    CONTEXT_BYTES,
    peak_memory,
    resident_bytes,
    tells_reserved,
)
from peakward.prediction.memory.step import planned
from peakward.prediction.planning.attempt import Attempts
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.memory import MemoryPrediction

COMPILED_SHARE = (0.75, 1.06)
"""Reserved by a compiled step over an eager one's, where the compiled one's is not predicted itself: 81
cases on an H200 and an H100 had 0.764 to 1.055. Of compiled prefill and decode none was measured."""
CAPTURED_SHARE = (0.95, 1.8)
"""Likewise where the step is a CUDA graph, which has a pool of its own beside what the steps before
it left: four cases on an H200 had 0.957 to 1.784, sixteen decode steps on an H100 1.002 to 1.094."""


class Room(NamedTuple):
    """The room on one GPU."""

    needed_bytes: int
    """Needed bytes. Compiled code and CUDA graphs have the figure of the same step without them."""
    fits: bool | None
    """None: the limit lies within what such steps have been seen to need."""


def room(case: ModelCase, memory: MemoryPrediction, on: Site, attempts: Attempts) -> Room:
    """The room on one GPU. Near the limit the allocator returns what it has free, so that a case may fit that
    would have reserved more."""
    limit = on.limit_bytes(case.memory_limit_bytes)
    if memory.reserved_bytes is None:
        return _as_eager(case, on, limit, attempts)
    needed = memory.reserved_bytes + memory.context_bytes
    if needed <= limit:
        return Room(needed, True)
    if memory.peak_bytes + memory.context_bytes > limit:
        return Room(needed, False)
    return Room(needed, fits(case, limit, on.group))


def is_too_large(case: ModelCase, on: Site) -> bool:
    """Whether parameters, gradients and moments alone leave no room there: no need to look at the rest. False
    also where the case's memory is not predicted."""
    if resident_bytes(case, on.group) + CONTEXT_BYTES <= on.limit_bytes(case.memory_limit_bytes):
        return False
    try:
        planned(case)
    except PeakwardError:
        return False
    return tells_reserved(case)


def largest_batch_size(case: ModelCase, on: Site) -> int:
    """The largest batch of one GPU; 0 where not a single sequence fits.

    Raises:
        PeakwardError: a setting whose memory is not predicted.
    """
    return largest_batch(case, on.limit_bytes(case.memory_limit_bytes), on.group)


def longest_seq_len(case: ModelCase, on: Site) -> int:
    """The longest sequence on one GPU with the case's batch; 0 where not even the shortest fits.

    Raises:
        PeakwardError: a setting whose memory is not predicted, or lengths that vary.
    """
    return longest_sequence(case, on.limit_bytes(case.memory_limit_bytes), on.group)


def _as_eager(case: ModelCase, on: Site, limit: int, attempts: Attempts) -> Room:
    """By the range of what such steps have needed beside eager ones."""
    captured = case.configuration.cuda_graphs
    low, high = CAPTURED_SHARE if captured else COMPILED_SHARE
    kind = "a CUDA graph" if captured else "compiled code"
    reason = f"{kind} needs {low} to {high} times what eager code does, which stands in its place"
    attempts.without("needed memory", reason)
    reserved = peak_memory(_eager(case), on.group).reserved_bytes
    assert reserved is not None
    least, most = (CONTEXT_BYTES + share * reserved for share in (low, high))
    fits_ = True if most <= limit else False if least > limit else None
    return Room(CONTEXT_BYTES + reserved, fits_)


def _eager(case: ModelCase) -> ModelCase:
    settings = msgspec.structs.replace(case.configuration, compile="none", cuda_graphs=False)
    return msgspec.structs.replace(case, configuration=settings)
