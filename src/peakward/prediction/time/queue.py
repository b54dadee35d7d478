"""The time of a step from what the host and the device each need: who waits for whom.

The host issues launches one after another and the device carries them out in order; the host may be
as far ahead as the queue is deep. Where every launch takes the device longer, the step is the
device's time, where every launch takes the host longer, the host's; with both in one step, as in
an optimiser that keeps the device busy after a backward pass that did not, it lies between.
"""

from collections.abc import Sequence
from typing import NamedTuple

DEPTH = 1000
"""Launches that a stream takes before the host has to wait: about a thousand (CUDA does not say)."""
REPEATS = 4
"""Steps until the queue is as full at the end of one as at the end of the next."""


class Stretch(NamedTuple):
    """Launches that follow one another, alike."""

    n_launches: int
    host_s: float
    """Of all together; so is the device's."""
    device_s: float


def step_s(stretches: Sequence[Stretch]) -> float:
    """Seconds from one step's end to the next's, when many follow one another."""
    host_s = device_s = before_s = 0.0
    ends: list[float] = []
    for _ in range(REPEATS):
        before_s = device_s
        for stretch in stretches:
            a_host_s = stretch.host_s / stretch.n_launches
            a_device_s = stretch.device_s / stretch.n_launches
            for _ in range(stretch.n_launches):
                host_s += a_host_s
                if len(ends) >= DEPTH:
                    host_s = max(host_s, ends[-DEPTH])
                device_s = max(host_s, device_s) + a_device_s
                ends.append(device_s)
    return device_s - before_s
