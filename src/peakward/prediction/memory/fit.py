"""Whether a case fits a memory limit, and the largest batch that does."""

import msgspec

from peakward.prediction.memory.allocator import OverLimitError
from peakward.prediction.memory.peak import CONTEXT_BYTES
from peakward.prediction.memory.replay import replay
from peakward.prediction.memory.step import timeline
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError


def fits(case: ModelCase, limit_bytes: int, *, context_bytes: int = CONTEXT_BYTES) -> bool:
    """Whether reserved bytes and context stay within the limit.

    That can be so where `peak_memory` has more reserved than the limit: near it the allocator
    returns its free segments. A limit in the case itself is left aside.

    Raises:
        PeakwardError: a setting that is not covered; compiled code or a CUDA graph, of which
            reserved bytes are not computed.
    """
    _check_is_eager(case)
    try:
        replay(timeline(case), limit_bytes - context_bytes)
    except OverLimitError:
        return False
    return True


def largest_batch(case: ModelCase, limit_bytes: int, *, context_bytes: int = CONTEXT_BYTES) -> int:
    """The batch size that fits while the next one does not; 0 if a single sequence does not fit.

    Found by doubling and halving: fragments may let a larger batch fit again, which this misses.

    Raises:
        PeakwardError: a setting that is not covered; compiled code or a CUDA graph, of which
            reserved bytes are not computed.
    """

    def fit(batch_size: int) -> bool:
        workload = msgspec.structs.replace(case.workload, batch_size=batch_size)
        tried = msgspec.structs.replace(case, workload=workload)
        return fits(tried, limit_bytes, context_bytes=context_bytes)

    if not fit(1):
        return 0
    low, high = 1, 2
    while fit(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def _check_is_eager(case: ModelCase) -> None:
    configuration = case.configuration
    if configuration.compile != "none" or configuration.cuda_graphs:
        raise PeakwardError(
            "expected an eager step to say whether it fits, got a compiled one or a CUDA graph: "
            "ask for the same case without these levers, or measure it"
        )
