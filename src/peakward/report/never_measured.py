"""Notes kernels whose time is only guessed."""

from collections.abc import Iterable

from peakward.records.plan import Change
from peakward.records.prediction import StepTime


def said(times: Iterable[StepTime | Change | None]) -> str | None:
    """A note that names these operators and their effect on intervals; None where there are none. An operator
    and its gradients share one name."""
    found = {name for time in times if time is not None for name in time.never_measured}
    names = sorted({each.removeprefix("peakward.").replace("_backward", "") for each in found})
    if not names:
        return None
    return (
        f"No stored result has timed Peakward's {', '.join(names)}. Intervals include half to "
        "twice the time of these kernels and their gradients."
    )
