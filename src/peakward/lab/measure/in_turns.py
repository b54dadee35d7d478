"""Times two forms of a step that lives here in turn, each put in place for its turn."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import NamedTuple

import torch

from peakward.lab.measure.in_process import type_of
from peakward.lab.measure.jobs import doubts
from peakward.lab.measure.messages import Turn
from peakward.lab.measure.this_process import LiveSite
from peakward.lab.measure.timer import time_steps
from peakward.records.measurement import Protocol

Arm = Callable[[], AbstractContextManager[Callable[[], object]]]
"""Puts a form of the step in place, and gives a call of it, for as long as the context lasts."""


class Pair(NamedTuple):
    """Two turns that ran next to each other."""

    base: Turn
    candidate: Turn


def pairs_of_turns(
    base: Arm, candidate: Arm, protocol: Protocol, place: torch.device
) -> Iterator[tuple[Pair, Pair]]:
    """Two pairs at a time, without end, in the order base, candidate, candidate, base.

    The second form stays in place for two turns, since it may have to be compiled for them; what drifts
    with time favours neither (its sum over the four is the same for both).
    """
    site = LiveSite(place)
    while True:
        first = _turns(base, 1, protocol, site, place)
        middle = _turns(candidate, 2, protocol, site, place)
        last = _turns(base, 1, protocol, site, place)
        yield Pair(first[0], middle[0]), Pair(last[0], middle[1])


def _turns(arm: Arm, n: int, protocol: Protocol, site: LiveSite, place: torch.device) -> list[Turn]:
    kind = type_of(place)
    current = torch.cuda.device(place) if kind == "cuda" else nullcontext()
    with current, arm() as step:
        return [_turn(step, protocol, site, place) for _ in range(n)]


def _turn(
    step: Callable[[], object], protocol: Protocol, site: LiveSite, place: torch.device
) -> Turn:
    kind = type_of(place)
    clock, watch = site.clock(kind), site.watch(kind)
    with site.meter(kind) as meter:
        timing = time_steps(step, protocol, clock, watch=watch)
        peak_bytes = meter.use().peak_allocated_bytes
    sensed = watch.telemetry(len(timing.run.steps_s))
    return Turn(
        median_s=median(timing.run.steps_s),
        peak_bytes=peak_bytes,
        doubts=doubts(timing, watch),
        energy_j=None if sensed is None else sensed.energy_per_step_j,
    )
