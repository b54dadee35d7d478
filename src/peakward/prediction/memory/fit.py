"""Whether a case fits a memory limit, and the largest batch that does."""

import math

import msgspec

from peakward.prediction.memory.allocator import OverLimitError
from peakward.prediction.memory.group import tensors_of
from peakward.prediction.memory.peak import CONTEXT_BYTES, peak_memory, tells_reserved
from peakward.prediction.memory.replay import replay
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.memory import MemorySplit
from peakward.records.plan import Group


def fits(
    case: ModelCase,
    limit_bytes: int,
    group: Group | None = None,
    *,
    context_bytes: int = CONTEXT_BYTES,
) -> bool:
    """Whether one GPU's reserved bytes and context stay within the limit.

    That can be so where `peak_memory` has more reserved than the limit: near it the allocator
    returns its free segments. A limit in the case itself is left aside.

    Raises:
        PeakwardError: a setting that is not covered, or of which reserved bytes are not predicted.
    """
    _check_is_told(case)
    return _peak_within(case, limit_bytes - context_bytes, group) is not None


def largest_batch(
    case: ModelCase,
    limit_bytes: int,
    group: Group | None = None,
    *,
    context_bytes: int = CONTEXT_BYTES,
) -> int:
    """The batch size of one GPU that fits while the next one does not; 0 if a single sequence does not fit.

    Searched for around what the growth with the batch lets expect: fragments may let a larger batch
    fit again, which this misses.

    Raises:
        PeakwardError: a setting that is not covered, or of which reserved bytes are not predicted.
    """

    _check_is_told(case)
    limit = limit_bytes - context_bytes
    found = peak_memory(case, group)
    low, held, high = 0, _fixed_bytes(found.peak), math.inf
    growth = max(1.0, (found.peak_bytes - held) / case.workload.batch_size)
    while high - low > 1:
        size = _next(low, high, (limit - held) / growth)
        peak = _peak_within(_with_batch(case, size), limit, group)
        if peak is None:
            high = size
        else:
            growth = max(1.0, (peak - held) / (size - low))
            low, held = size, peak
    return low


def _next(low: int, high: float, more: float) -> int:
    """The batch size to try between the two, where `more` sequences are expected to fit beyond the
    lower; never more than four times as many, for growth may lie in a phase without the peak."""
    size = low + max(1, math.floor(more))
    if low:
        size = min(size, 4 * low)
    if size >= high:
        size = int(high) - max(1, (int(high) - low) // 4)
    return size


def _peak_within(case: ModelCase, limit_bytes: int, group: Group | None) -> int | None:
    """The allocator's peak, or None where more than the limit has to be reserved."""
    try:
        return replay(tensors_of(case, group), limit_bytes).split.total_bytes
    except OverLimitError:
        return None


def _fixed_bytes(held: MemorySplit) -> int:
    """What does not grow with the batch, at the peak."""
    return (
        held.parameters_bytes
        + held.gradients_bytes
        + held.optimizer_state_bytes
        + held.weight_casts_bytes
        + held.workspace_bytes
    )


def _with_batch(case: ModelCase, batch_size: int) -> ModelCase:
    workload = msgspec.structs.replace(case.workload, batch_size=batch_size)
    return msgspec.structs.replace(case, workload=workload)


def _check_is_told(case: ModelCase) -> None:
    if not tells_reserved(case):
        raise PeakwardError(
            "expected an eager step, or one of compiled blocks, to say whether it fits, got a CUDA graph "
            "or code that is compiled otherwise: ask for the same case without these levers, or measure it"
        )
