"""The allocator's activity during a recording, and how often it had to ask the device twice."""

from collections.abc import Sequence

import numpy as np

from peakward.records.memory_snapshot import MemoryChurn
from peakward.traces.memory.frame_marks import Mark
from peakward.traces.memory.table import NONE, Action, Annotation, Events, Flags, Ints

_TAKES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def churn(events: Events, marks: Ints, annotations: Sequence[Annotation]) -> MemoryChurn:
    """The activity on one device. `marks` belong to the stacks (`frame_marks.stack_marks`)."""
    allocs = events.action == Action.ALLOC
    frees = events.action == Action.FREE_REQUESTED
    if not frees.any():
        frees = events.action == Action.FREE_COMPLETED
    retries = _retries(events, marks)
    steps = sum(
        each.name.startswith("Optimizer.step#") and each.stage.upper() != "END"
        for each in annotations
    )
    return MemoryChurn(
        n_allocs=int(allocs.sum()),
        n_frees=int(frees.sum()),
        allocated_bytes=int(events.n_bytes[allocs].sum()),
        n_device_allocs=int(np.isin(events.action, _TAKES).sum()),
        n_device_frees=int(np.isin(events.action, _GIVES).sum()),
        n_retries=len(retries),
        retry_bytes=sum(int(events.n_bytes[low:high].sum()) for low, high in retries),
        n_steps=steps or None,
    )


def _retries(events: Events, marks: Ints) -> list[tuple[int, int]]:
    """Runs of freed segments that are directly followed by a device allocation or an out-of-memory event."""
    given = np.isin(events.action, _GIVES) & ~_by_request(events, marks)
    edges = np.flatnonzero(np.diff(np.r_[0, given, 0]))
    asked = np.r_[np.isin(events.action, (*_TAKES, Action.OOM)), False]
    return [(int(low), int(high)) for low, high in edges.reshape(-1, 2) if asked[high]]


def _by_request(events: Events, marks: Ints) -> Flags:
    """Whether the stack shows a request by the program; without a stack, true as a precaution."""
    of_event = np.where(events.stack == NONE, 0, np.r_[marks, 0][events.stack])
    found: Flags = (events.stack == NONE) | ((of_event & int(Mark.EMPTY_CACHE)) != 0)
    return found
