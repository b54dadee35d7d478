"""The time of a step from what the host and the device each need: who waits for whom.

The host issues launches one after another and the device carries them out in order; the host may be
as far ahead as the queue is deep. Where every launch takes the device longer, the step is the
device's time, where every launch takes the host longer, the host's; with both in one step, as in
an optimiser that keeps the device busy after a backward pass that did not, it lies between.
"""

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
    or the device became free, whichever is last: so chunks of them need no look at each. A plan takes
    hundreds of thousands of chunks: plain comparisons, for `max` alone took a third of the time.
    """
    host_s = device_s = before_s = 0.0
    issued, done = 0, 0
    after, ends_s = [0], [0.0]
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
                # The host waits until the device has come to a launch so far back, in chunk `done`.
                room = issued - DEPTH
                while after[done + 1] <= room:
                    done += 1
                share = (room - after[done]) / (after[done + 1] - after[done])
                room_s = ends_s[done] + share * (ends_s[done + 1] - ends_s[done])
                host_s = room_s if room_s > host_s else host_s
            begun_s = (device_s if device_s > first_s else first_s) + n * a_device_s
            last_s = host_s + a_device_s
            device_s = begun_s if begun_s > last_s else last_s
            after.append(issued)
            ends_s.append(device_s)
            if waits and host_s < device_s:
                host_s = device_s
    return device_s - before_s


def _chunks(stretch: Stretch) -> Iterator[tuple[int, bool]]:
    """Launches, and whether the host waits after them."""
    n_parts = stretch.n_waits + 1
    ends = [stretch.n_launches * (i + 1) // n_parts for i in range(n_parts)]
    for i, (begin, end) in enumerate(pairwise([0, *ends])):
        for done in range(begin, end, CHUNK):
            n = min(CHUNK, end - done)
            yield n, i < stretch.n_waits and done + n == end
