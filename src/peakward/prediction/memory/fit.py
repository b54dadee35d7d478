"""Whether a case fits a memory limit, and the largest batch that does."""

import math
from collections.abc import Callable

import msgspec

from peakward.levers.catalogue import together_obstacle
from peakward.prediction.memory.peak import CONTEXT_BYTES, peak_memory, tells_reserved, within
from peakward.prediction.memory.replay import Replay
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.memory import MemorySplit
from peakward.records.plan import DeviceGroup

MOST_VERIFIED = 32
"""Sizes below a largest one: a replay of 32 blocks takes some 30 ms."""
FREE_OF_LIMIT = 6
"""So many sizes in a row that return no segment end the verification: of 23 cases with a size that does not
fit below one that does, none had more than 4 of them between the two."""
ANY_BATCH = 1 << 20
"""Settings that go with so many sequences go with any number."""
SEQUENCE_STEP = 64
"""Tokens: finer nobody asks for, and the search takes a replay of a step for each length it tries."""


def fits(
    case: ModelCase,
    limit_bytes: int,
    group: DeviceGroup | None = None,
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
    return within(case, limit_bytes - context_bytes, group) is not None


def largest_batch(
    case: ModelCase,
    limit_bytes: int,
    group: DeviceGroup | None = None,
    *,
    context_bytes: int = CONTEXT_BYTES,
) -> int:
    """The batch size of one GPU that fits with the sizes below it while the next one does not; 0 if a
    single sequence does not fit.

    Searched for around what the growth with the batch lets expect. Fragments may keep a size from fitting
    below one that fits: those below the answer are verified where the allocator is at its limit
    (`_verified`), and a larger size that fits again is not the answer.

    Raises:
        PeakwardError: a setting that is not covered, or of which reserved bytes are not predicted.
    """
    _check_is_told(case)
    limit_bytes -= context_bytes

    def of_size(size: int) -> ModelCase:
        return _with(case, batch_size=size)

    size = case.workload.batch_size
    most = _most_taken(size, of_size)
    found = _largest(case, size, of_size, limit_bytes=limit_bytes, group=group, most=most)
    return _verified(
        found,
        lambda size: within(of_size(size), limit_bytes, group),
        lambda size: tells_reserved(of_size(size)),
    )


def _most_taken(size: int, of_size: Callable[[int], ModelCase]) -> int | None:
    """The largest batch that the settings of a case go with; None where no size is too large for them."""

    def goes(tried: int) -> bool:
        return together_obstacle(of_size(tried), compute_capability=None) is None

    if goes(ANY_BATCH) or not goes(size):
        return None
    low, high = size, ANY_BATCH
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if goes(middle) else (low, middle)
    return low


def longest_sequence(
    case: ModelCase,
    limit_bytes: int,
    group: DeviceGroup | None = None,
    *,
    context_bytes: int = CONTEXT_BYTES,
) -> int:
    """The longest seq_len of which one GPU holds the batch, as a multiple of `SEQUENCE_STEP`, or all of a
    table of learned positions; 0 if not even the shortest fits. Searched for as `largest_batch` is, and
    not verified: of two lengths of a compiled step it is now and then the shorter that takes more.

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
    group: DeviceGroup | None,
    most: int | None = None,
) -> int:
    """The largest size, `most` at most, that fits; the case is the one of `size`.

    Raises:
        PeakwardError: of the next one it is not known what is reserved, as of a window that only there
            leaves keys out.
    """
    found = peak_memory(case, group)
    low, held, high = 0, _fixed_bytes(found.peak), math.inf if most is None else most + 1
    growth = max(1.0, (found.peak_bytes - held) / size)
    while high - low > 1:
        tried = _next(low, high, (limit_bytes - held) / growth)
        candidate = of_size(tried)
        told = tells_reserved(candidate)
        fitting = within(candidate, limit_bytes, group) if told else None
        if fitting is None:
            high = tried
        else:
            peak = fitting.split.total_bytes
            growth = max(1.0, (peak - held) / (tried - low))
            low, held = tried, peak
    if most is None or high <= most:
        _check_is_told(of_size(int(high)))
    return low


def _verified(
    size: int, replayed: Callable[[int], Replay | None], is_told: Callable[[int], bool]
) -> int:
    """The size, or less: so that it fits with the sizes below it, as far as what they reserve is predicted
    and the limit makes itself felt there, MOST_VERIFIED at most.

    The search alone named in 23 of 236 random cases a size above one of the 40 below it that does not fit:
    the segments that earlier blocks leave free are then too small by a little.
    """
    tried, n_free = size - 1, 0
    while tried > 0 and n_free < FREE_OF_LIMIT and size - tried <= MOST_VERIFIED and is_told(tried):
        found = replayed(tried)
        if found is None:
            size, n_free = tried - 1, 0
        else:
            n_free = 0 if found.was_at_limit else n_free + 1
        tried -= 1
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


def _fixed_bytes(held: MemorySplit) -> int:
    """Bytes at the peak that do not grow with the batch."""
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
