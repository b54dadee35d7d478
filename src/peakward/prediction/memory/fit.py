"""Whether a case fits a memory limit, and the largest batch that does."""

import math
from collections.abc import Callable
from functools import cache

import msgspec

from peakward.prediction.memory.allocator import OverLimitError
from peakward.prediction.memory.group import tensors_of
from peakward.prediction.memory.peak import CONTEXT_BYTES, peak_memory, tells_reserved
from peakward.prediction.memory.replay import replay
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.memory import MemorySplit
from peakward.records.plan import Group

VERIFIED_SHARE, MOST_VERIFIED = 4, 32
"""One in so many of the sizes below a largest one is verified, up to so many: a replay of 32 blocks takes
some 30 ms."""
SEQUENCE_STEP = 64
"""Tokens: finer nobody asks for, and the search takes a replay of a step for each length it tries."""


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
    """The batch size of one GPU that fits with the sizes below it while the next one does not; 0 if a
    single sequence does not fit.

    Searched for around what the growth with the batch lets expect. Fragments may keep a size from fitting
    below one that fits: a quarter of the sizes below the answer is verified (`_verified`), and a larger
    size that fits again is not the answer.

    Raises:
        PeakwardError: a setting that is not covered, or of which reserved bytes are not predicted.
    """
    _check_is_told(case)
    return _largest(
        case,
        case.workload.batch_size,
        lambda size: _with(case, batch_size=size),
        limit_bytes=limit_bytes - context_bytes,
        group=group,
    )


def longest_sequence(
    case: ModelCase,
    limit_bytes: int,
    group: Group | None = None,
    *,
    context_bytes: int = CONTEXT_BYTES,
) -> int:
    """The longest seq_len of which one GPU holds the batch, as a multiple of `SEQUENCE_STEP`, or all of a
    table of learned positions; 0 if not even the shortest fits. Searched for as `largest_batch` is.

    Raises:
        PeakwardError: lengths that vary; a setting that is not covered, or of which reserved bytes are
            not predicted, be it of the next length alone.
    """
    _check_is_told(case)
    workload, step = case.workload, SEQUENCE_STEP
    if workload.varying_seq_lens:
        raise PeakwardError(
            "expected one length to make longer, got lengths that vary: give --seq-len"
        )
    end = case.model.max_seq_len if case.model.positions == "learned" else None

    def length(size: int) -> int:
        return size * step if end is None else min(size * step, end)

    size = max(1, workload.seq_len // step)
    found = _largest(
        _with(case, seq_len=length(size)),
        size,
        lambda size: _with(case, seq_len=length(size)),
        limit_bytes=limit_bytes - context_bytes,
        group=group,
        most=None if end is None else math.ceil(end / step),
    )
    return length(found)


def _largest(
    case: ModelCase,
    size: int,
    of_size: Callable[[int], ModelCase],
    *,
    limit_bytes: int,
    group: Group | None,
    most: int | None = None,
) -> int:
    """The largest size, `most` at most, that fits; the case is the one of `size`.

    Raises:
        PeakwardError: of the next one it is not known what is reserved, as of a window that only there
            leaves keys out.
    """
    found = peak_memory(case, group)

    @cache
    def peak_of(tried: int) -> int | None:
        candidate = of_size(tried)
        return _peak_within(candidate, limit_bytes, group) if tells_reserved(candidate) else None

    low, held, high = 0, _fixed_bytes(found.peak), math.inf if most is None else most + 1
    growth = max(1.0, (found.peak_bytes - held) / size)
    while high - low > 1:
        tried = _next(low, high, (limit_bytes - held) / growth)
        peak = peak_of(tried)
        if peak is None:
            high = tried
        else:
            growth = max(1.0, (peak - held) / (tried - low))
            low, held = tried, peak
    if most is None or high <= most:
        _check_is_told(of_size(int(high)))
    return _verified(low, lambda size: peak_of(size) is not None)


def _verified(size: int, fits_at: Callable[[int], bool]) -> int:
    """The size, or less: so that it fits with a quarter of the sizes below it, MOST_VERIFIED at most.

    The search alone named in 23 of 236 random cases a size above one of the 40 below it that does not fit,
    at most 19% below: the segments that earlier blocks leave free are then too small by a little.
    """
    while size:
        n = min(MOST_VERIFIED, max(1, size // VERIFIED_SHARE))
        misses = [each for each in range(max(1, size - n), size) if not fits_at(each)]
        if not misses:
            break
        size = misses[0] - 1
    return size


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


def _with(case: ModelCase, **changes: int) -> ModelCase:
    return msgspec.structs.replace(case, workload=msgspec.structs.replace(case.workload, **changes))


def _check_is_told(case: ModelCase) -> None:
    if not tells_reserved(case):
        raise PeakwardError(
            "expected an eager step, or compiled blocks whose kernels are known, to predict what is "
            "reserved, got a CUDA graph or other compiled code: ask for the same case without these "
            "levers, or measure it"
        )
