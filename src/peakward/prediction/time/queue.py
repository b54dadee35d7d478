"""The time of a step from what the host and the device each need: who waits for whom.

The host issues launches one after another and the device carries them out in order; the host may be
as far ahead as the queue is deep. Where every launch takes the device longer, the step is the
device's time, where every launch takes the host longer, the host's; with both in one step, as in
an optimiser that keeps the device busy after a backward pass that did not, it lies between.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

DEPTH = 1021
"""Launches that a stream takes before the host has to wait; CUDA does not say. In six stored profiles
of eager steps on an H200 (`2026-11-21-h200-study-kernels`, `run-2.7B`) no more ever waited."""
CHUNK = DEPTH // 40
"""Launches taken together."""
REPEATS = 4
"""Steps until the queue is as full at the end of one as at the end of the next."""


class Stretch(NamedTuple):
    """Launches that follow one another, alike."""

    n_launches: int
    host_s: float
    """Seconds of all launches together; the device's too."""
    device_s: float
    n_waits: int = 0
    """Times that the host needs a value from the device before it can go on, evenly among the
    launches: then all before is done, and the device has nothing until the host is back."""


def step_s(stretches: Sequence[Stretch]) -> float:
    """Seconds from one step's end to the next's, when many follow one another.

    The last of n alike launches ends b after the host issued it, or n·b after the first was issued
    or the device became free, whichever is last: so chunks of them need no look at each.
    """
    host_s = device_s = before_s = 0.0
    ends = deque([(0, 0.0)])
    issued = 0
    chunks = [
        (n, waits, each.host_s / each.n_launches, each.device_s / each.n_launches)
        for each in stretches
        for n, waits in _chunks(each)
    ]
    for _ in range(REPEATS):
        before_s = device_s
        for n, waits, a_host_s, a_device_s in chunks:
            issued += n
            first_s = host_s + a_host_s
            host_s += n * a_host_s
            if issued > DEPTH:
                host_s = max(host_s, _done_s(ends, issued - DEPTH))
            device_s = max(max(device_s, first_s) + n * a_device_s, host_s + a_device_s)
            ends.append((issued, device_s))
            host_s = max(host_s, device_s) if waits else host_s
    return device_s - before_s


def _done_s(ends: deque[tuple[int, float]], n: int) -> float:
    """When the device has carried out n launches, from its ends of chunks; forgets those before."""
    while len(ends) > 1 and ends[1][0] <= n:
        ends.popleft()
    (before, before_s), (after, after_s) = ends[0], ends[min(1, len(ends) - 1)]
    share = (n - before) / (after - before) if after > before else 0.0
    return before_s + share * (after_s - before_s)


def _chunks(stretch: Stretch) -> Iterator[tuple[int, bool]]:
    """Launches, and whether the host waits after them."""
    n_parts = stretch.n_waits + 1
    ends = [stretch.n_launches * (i + 1) // n_parts for i in range(n_parts)]
    for i, (begin, end) in enumerate(pairwise([0, *ends])):
        for done in range(begin, end, CHUNK):
            n = min(CHUNK, end - done)
            yield n, i < stretch.n_waits and done + n == end
