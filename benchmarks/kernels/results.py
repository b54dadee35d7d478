"""What a contest gave."""

import msgspec

from peakward.records.measurement import Interval


class Arm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of those who computed it."""

    name: str
    median_s: float | None = None
    spread: float | None = None
    """Of the rounds' medians: (largest - smallest) over their median."""
    error: float | None = None
    """‖got - exact‖ / ‖exact‖, the largest of its outputs'."""
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    failed: str | None = None
    """What it raised, or that its result is wrong: then it has no time."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A contest, with the speed of ours over the fastest peer's."""

    operator: str
    shape: dict[str, int | str | bool]
    arms: tuple[Arm, ...]
    copy_s: float | None = None
    """A copy's that moves as many bytes, where bytes are what bounds it."""
    read_s: float | None = None
    """In its place, where next to nothing is written, of what reads as many and no more."""
    best_peer: str | None = None
    speed_over_best: Interval | None = None
    """Its time over ours, paired by round, with the rounds as the unit."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All contests of a run on one device."""

    device: str
    driver: str
    torch: str
    triton: str
    cudnn: int | None
    clock_hz: tuple[int, int] | None
    """Of the multiprocessors, the least and the most seen between contests; None where not looked at."""
    copy_bytes_per_s: float
    """Read and written, of 2 GiB, in the same job."""
    n_rounds: int
    n_calls: int
    outcomes: tuple[Outcome, ...]
    left: tuple[str, ...]
    """Contests that no time was left for."""
