"""A live loop's times made by hand: 100 steps of 100 ms but for `changes`."""

from typing import Any

import msgspec

from peakward.records.loop import LoopTimes, Pauses

STEADY = LoopTimes(
    n_steps=100,
    total_s=10.0,
    median_s=0.1,
    spread_s=0.001,
    change=0.0,
    change_p_value=1.0,
    waited_s=0.0,
    n_collections=0,
    collected_s=0.0,
    longest_collection_s=0.0,
    pauses=Pauses(),
    n_windows=1,
    windows_s=0.1,
)


def loop(**changes: Any) -> LoopTimes:
    return msgspec.structs.replace(STEADY, **changes)


def paused(beyond_s: float, n: int = 5, **changes: Any) -> LoopTimes:
    """With steps that took so much longer, in sum."""
    pauses = Pauses(n=n, beyond_s=beyond_s, longest_s=0.1 + beyond_s / n, **changes)
    return loop(total_s=10.0 + beyond_s, pauses=pauses)
