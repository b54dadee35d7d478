"""Kernels whose time a prediction only guesses."""

from collections.abc import Iterable

from peakward.records.plan import Change
from peakward.records.step_time import StepTime


def said(times: Iterable[StepTime | Change | None]) -> str | None:
    """Which operators, and what that does to intervals; None where there are none."""
    names = sorted({name for time in times if time is not None for name in time.never_measured})
    if not names:
        return None
    return (
        f"No stored result has timed {', '.join(names)}: of what they take a half to twice is in the "
        "intervals."
    )
