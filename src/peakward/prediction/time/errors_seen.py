"""How far predictions have been from measured times, from which their intervals are."""

from peakward.records.measurement import Interval
from peakward.records.prediction import Source
from peakward.records.step_time import Waits

LEVEL = 0.9
FACTORS: dict[tuple[Source, Waits], tuple[float, float]] = {
    ("calibrated", "device"): (0.95, 1.11),
    ("calibrated", "host"): (0.78, 1.46),
    ("datasheet", "device"): (0.77, 1.30),
    ("datasheet", "host"): (0.50, 2.00),
}
"""Of the predicted time, between which nine in ten measured ones lie. Calibrated: the accuracy
benchmark on an H200 (results/). Of datasheets it has one device, and a host is whichever it is:
these are wider than what was found."""


def interval(step_s: float, source: Source, bound: Waits) -> Interval:
    """The predicted time with the range that is to be expected of such predictions."""
    low, high = FACTORS[source, bound]
    return Interval(estimate=step_s, low=step_s * low, high=step_s * high, level=LEVEL)
