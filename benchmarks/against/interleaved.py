"""Two arms timed in turns, A B B A A B …, so that what drifts meets both alike."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median
from typing import Protocol

import msgspec

from peakward.lab.measure import nvml
from peakward.lab.measure.clock import Clock
from peakward.lab.measure.telemetry import Sampler
from peakward.lab.measure.timer import collector_paused
from peakward.records.lever import Pair
from peakward.records.measurement import Telemetry

N_SETTLING = 2
"""Steps that begin a turn untimed: the queue fills, and the other arm's data leaves the cache."""


class Arm(Protocol):
    """Something built that can run a step."""

    n_parameters: int

    def step(self) -> None:
        """One whole step; it may return before the device is done."""

    def loss(self) -> float | None:
        """Of the last step; waits for it. None where the pass has none."""


Builder = Callable[[], AbstractContextManager[Arm]]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's steps between two changes of arm."""

    arm: str
    n_steps: int
    median_s: float
    telemetry: Telemetry | None


def order(n_pairs: int) -> str:
    """Of the turns: each pair of neighbours has both arms, every second one in reverse."""
    return "".join("AB" if i % 2 == 0 else "BA" for i in range(n_pairs))


def run_turn(name: str, arm: Arm, clock: Clock, gpu: nvml.Gpu | None, *, turn_s: float) -> Turn:
    """About `turn_s` seconds of steps, at least four, after the settling ones."""
    sampler = Sampler(gpu)
    clock.reserve(N_SETTLING + 1)
    for i in range(N_SETTLING):
        clock.mark(i)
        arm.step()
    clock.mark(N_SETTLING)
    clock.wait(N_SETTLING)
    estimate_s = clock.between_s(N_SETTLING - 1, N_SETTLING)
    n_steps = min(400, max(4, round(turn_s / max(estimate_s, 1e-6))))
    clock.reserve(N_SETTLING + n_steps + 1)
    with collector_paused(), sampler:
        for i in range(N_SETTLING + n_steps):
            clock.mark(i)
            arm.step()
        clock.mark(N_SETTLING + n_steps)
        clock.wait(N_SETTLING + n_steps)
    times = [clock.between_s(i, i + 1) for i in range(N_SETTLING, N_SETTLING + n_steps)]
    return Turn(
        arm=name,
        n_steps=n_steps,
        median_s=median(times),
        telemetry=sampler.telemetry(N_SETTLING + n_steps),
    )


@contextmanager
def both_resident(arms: dict[str, Builder]) -> Iterator[Callable[[str], Arm]]:
    """Both built at once; taking one costs nothing."""
    with ExitStack() as stack:
        built = {name: stack.enter_context(build()) for name, build in arms.items()}
        yield built.__getitem__


@contextmanager
def one_resident(
    arms: dict[str, Builder], prepare: Callable[[Arm], None], release: Callable[[], None]
) -> Iterator[Callable[[str], Arm]]:
    """Taking the other arm releases the one held and builds and prepares the other anew."""
    with ExitStack() as stack:
        held: dict[str, Arm] = {}

        def take(name: str) -> Arm:
            if name not in held:
                held.clear()
                stack.close()
                release()
                held[name] = stack.enter_context(arms[name]())
                prepare(held[name])
            return held[name]

        yield take


def pairs_of(turns: list[Turn], *, base: str) -> tuple[Pair, ...]:
    """Of consecutive turns, two by two."""
    found = []
    for first, second in zip(turns[::2], turns[1::2], strict=False):
        here, there = (first, second) if first.arm == base else (second, first)
        found.append(Pair(process=0, base_s=here.median_s, candidate_s=there.median_s))
    return tuple(found)
