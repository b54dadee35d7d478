"""Times of GPU calls in turns, each from a cold L2."""

import statistics
from collections.abc import Callable, Mapping

import torch

FLUSH_BYTES = 256 << 20
"""Five times an H100's L2; writing it also lets the host run ahead, so that no launch is waited for."""


def in_turns(
    calls: Mapping[str, Callable[[], object]], *, n_rounds: int, n_calls: int
) -> dict[str, list[float]]:
    """Of each call, the median seconds of `n_calls` in each of `n_rounds`; the first of a round changes."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    names = list(calls)
    times_s: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(n_rounds):
        start = round_ % len(names)
        for name in names[start:] + names[:start]:
            times_s[name].append(_median_s(calls[name], flush, n_calls))
    return times_s


def _median_s(call: Callable[[], object], flush: torch.Tensor, n_calls: int) -> float:
    pairs = [(_event(), _event()) for _ in range(n_calls)]
    for begin, end in pairs:
        flush.zero_()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
