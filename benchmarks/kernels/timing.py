"""Times of GPU calls in turns, each from a cold L2."""

import statistics
from collections.abc import Callable, Mapping
from time import perf_counter

import torch

FLUSH_BYTES = 256 << 20
"""Five times an H100's L2, and read: behind one that is written a call also waits for the L2's 50 MB to be
written back, and what reads 29 MB took 17.5 µs for 13.8."""
CYCLES_PER_S = 2e9
"""No less than a multiprocessor's clock, so that a pause is no shorter than asked for."""


def in_turns(
    calls: Mapping[str, Callable[[], object]], *, n_rounds: int, n_calls: int
) -> dict[str, list[float]]:
    """Of each call, the median seconds of `n_calls` in each of `n_rounds`; the first of a round changes."""
    flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
    names = list(calls)
    times_s: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(n_rounds):
        start = round_ % len(names)
        for name in names[start:] + names[:start]:
            times_s[name].append(_median_s(calls[name], flush, n_calls))
    return times_s


def _median_s(call: Callable[[], object], flush: torch.Tensor, n_calls: int) -> float:
    pairs = [(_event(), _event()) for _ in range(n_calls)]
    # The device pauses until the host has launched everything: two launches of 40 µs had looked like
    # one of 140 where the flush alone (85 µs) was what the host could run ahead by.
    torch.cuda._sleep(int(n_calls * _host_s(call, flush) * CYCLES_PER_S))
    for begin, end in pairs:
        flush.sum()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1e3


def _host_s(call: Callable[[], object], flush: torch.Tensor) -> float:
    """What launching it once takes the host, twice over."""
    torch.cuda.synchronize()
    began = perf_counter()
    flush.sum()
    _event().record()
    call()
    taken_s = perf_counter() - began
    torch.cuda.synchronize()
    return 2 * taken_s


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
