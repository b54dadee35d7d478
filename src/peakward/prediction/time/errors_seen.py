"""How far predictions have been from measured times, from which their intervals are."""

from collections.abc import Iterable

from peakward.records.measurement import Interval
from peakward.records.prediction import PhasePrediction, Source, StepTime

LEVEL = 0.9
Factors = tuple[float, float]
"""Factors of a predicted time, between which nine in ten measured times lie."""
DEVICE: dict[Source, Factors] = {"calibrated": (0.95, 1.11), "datasheet": (0.77, 1.30)}
"""The factors of a step that the device bounds. Calibrated: intervals hold 218 of 231 cases on an H200
(`2026-11-28-h200-accuracy`); factors fitted without a model hold 89 in a hundred of that model's. On an H100,
which they had not seen, 77 of 82 (`2026-11-28-h100-accuracy`)."""
HOST: dict[bool, Factors] = {True: (0.78, 1.95), False: (0.43, 2.3)}
"""The factors of a step that the host bounds, by whether a call was timed on it. Timed: 64 of 66 cases and 51
of 53, of the same accuracies; but the host of a virtual machine changes: a call that took 9.0 µs in the
calibration took 10.4 to 17.5 within the minutes after it (H200, 2026-11-26), so that they reach to 1.95. Told
by each of 216 calls that were timed beside 81 steps of transformers' models, on hosts where it took 7.2 to
14.4 from second to second, 213 lie within their intervals. A call is timed on one thread: in profiles of an
H200 launches of products took 6.1 µs in the thread of the forward pass and 8.6 in that of the backward pass,
in another step 9.0 and 6.6. Not timed: it took 6.9, 8.4, 9.0, 9.9 and 19.2 µs in the stored calibrations of
five hosts of H100s and H200s, of whose pairs nine in ten lie between these factors."""


NEVER_MEASURED = (0.5, 2.0)
"""Factors of the predicted time of a kernel that no stored result bears out: a half to twice."""


def interval(
    step_s: float,
    factors: Factors,
    never_measured_s: float = 0.0,
    hosts_s: tuple[float, float] | None = None,
) -> Interval:
    """The predicted time with the range that is to be expected of such predictions.

    Args:
        step_s: what is predicted.
        factors: those of what bounds it.
        never_measured_s: of the device's time that of kernels which no stored result bears out.
        hosts_s: the predicted times by the least and the most that a call of the host may cost.
    """
    low, high = factors
    less_s, more_s = _beyond(step_s, never_measured_s)
    least_s, most_s = (step_s - less_s) * low, step_s * high + more_s
    if hosts_s is not None:
        least_s, most_s = min(least_s, hosts_s[0]), max(most_s, hosts_s[1])
    return Interval(estimate=step_s, low=least_s, high=most_s, level=LEVEL)


def _beyond(step_s: float, never_measured_s: float) -> tuple[float, float]:
    """How much less, and how much more, a step may take by these kernels."""
    low, high = NEVER_MEASURED
    return (1 - low) * min(step_s, never_measured_s), (high - 1) * never_measured_s


SPEEDUP_FACTORS: dict[tuple[Source, bool], tuple[float, float]] = {
    ("calibrated", True): (0.94, 1.07),
    ("calibrated", False): (0.72, 1.36),
    ("datasheet", True): (0.85, 1.20),
    ("datasheet", False): (0.65, 1.50),
}
"""Factors of a predicted ratio of two step times that differ by levers, by whether the device bounds both,
under a slower host too: pairs measured on an H200 (results/), mostly precisions, compilation and caches
(`tests/accuracy`). Calibrated nine in ten of 131 lie between 0.943 and 1.065 of what was predicted, of 160
that a host bounds between 0.772 and 1.295; by the datasheet, whose errors mostly cancel, of 122 between 0.950
and 1.112, of 169 between 0.772 and 1.295. They stand for one device, and so its own are taken wider."""


def stays_bound_by_device(phases: Iterable[PhasePrediction], host_is_known: bool) -> bool:
    """Whether the device bounds the step under the slowest host that is to be expected, too.

    A bf16 step of `small` 4 × 1024 needs 31 ms of an H200 and 19 of the host that its calibration knew; on
    another day (`2026-11-27-h200-study-precision`) its kernels took the same 31 and the step 47. Counted as
    bound by the device, 29 of 136 gains lay outside their intervals; of those that stay so, 2 of 60 do.
    """
    each_phase = tuple(phases)
    _, slowest = HOST[host_is_known]
    host_s = slowest * sum(each.host_s for each in each_phase)
    return host_s <= sum(each.device_s for each in each_phase)


def speedup(without: StepTime, with_levers: StepTime, ratio: float) -> Interval:
    """A predicted ratio of step times with the range that is to be expected of such predictions."""
    bound_by_device = all(
        stays_bound_by_device(each.phases, each.host_is_known) for each in (without, with_levers)
    )
    low, high = SPEEDUP_FACTORS[without.source, bound_by_device]
    shorter, longer = _factors(with_levers)
    base_shorter, base_longer = _factors(without)
    return Interval(
        estimate=ratio,
        low=ratio * low * base_shorter / longer,
        high=ratio * high * base_longer / shorter,
        level=LEVEL,
    )


def _factors(step: StepTime) -> tuple[float, float]:
    """By which its time may be off through kernels that nobody measured."""
    step_s = step.step_s.estimate
    less_s, more_s = _beyond(step_s, step.never_measured_s)
    return 1 - less_s / step_s, 1 + more_s / step_s
