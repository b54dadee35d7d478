"""Judges step times: stable, unstable or throttled, with the reasons and their remedies."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from peakward.records.measurement import Telemetry, Validity, Verdict
from peakward.stats.steady import trend

MIN_STEPS = 5
"""The fewest steps to judge. With fewer, spread and trend (`stats.trend`) cannot be told from chance."""
MAX_SPREAD = 0.05
"""The largest accepted spread, relative to the median. On GPUs with a settled clock steps repeat within 3%,
on throttling ones within 35% (records.md); at 5% the median of 30 steps is known to about 2%."""
MAX_OUTLIER_COST = 0.05
"""The most that slow outliers may lift the mean above the median. A long run would notice more."""
MAX_DRIFT = 0.02
"""The largest accepted drift from the first third to the last. More steps average a spread out, but not a
drift."""
DRIFT_P_VALUE = 0.01
"""One stable series in a hundred is called drifting, and only where it also moved by `MAX_DRIFT`."""
MIN_MODE_DISTANCE = 0.05
"""The smallest distance of two modes, relative to the median. Closer modes are no worse than the accepted
spread."""
MAX_CLOCK_DROP = 0.05
"""The largest accepted drop of the clock from its fastest sample to its mean. Every large GPU meets its power
cap in a long matmul; that matters only where the clock, and so the time of compute-bound work, moves by as
much as the spread."""
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
POWER_CAP = "sw_power_cap"
"""Throttle reasons that slow the device. `Telemetry.throttle_reasons` uses nvidia-smi's words without the
prefix `clocks_event_reasons.`. Its other reasons (gpu_idle, applications_clocks_setting, sync_boost, …) slow
nothing unasked."""
_IQR_SD = 1.349
"""Interquartile range of a normal distribution, in standard deviations."""


def _throttling(telemetry: Telemetry) -> Iterator[str]:
    slowdowns = [reason for reason in telemetry.throttle_reasons if reason in SLOWDOWNS]
    if slowdowns:
        yield f"the device reported {', '.join(slowdowns)} in {telemetry.n_samples} samples"
    clock = telemetry.sm_clock_mhz
    if clock is not None and POWER_CAP in telemetry.throttle_reasons:
        drop = 1 - clock.estimate / clock.high
        if drop > MAX_CLOCK_DROP:
            yield (
                f"under the power cap the clock fell {drop:.0%} > {MAX_CLOCK_DROP:.0%}, "
                f"from {clock.high:.0f} to {clock.estimate:.0f} MHz on average"
            )


def _spread(steps_s: Sequence[float]) -> Iterator[str]:
    """Reasons from the spread of the middle half and from the outliers, each judged by its effect on a claim.

    The plain coefficient of variation is not used: one step of 200 that takes twice as long lifts it to 7%,
    yet leaves the median and moves the mean by 0.5%. The interquartile range shows how well the median
    repeats; unlike the median absolute deviation it sees a second mode that holds over a quarter of the
    steps. The distance of the mean from the median shows the cost of the outliers.
    """
    centre = median(steps_s)
    lower, _, upper = quantiles(steps_s, n=4, method="inclusive")
    spread = (upper - lower) / _IQR_SD / centre
    if spread > MAX_SPREAD:
        yield f"coefficient of variation of the middle half {spread:.1%} > {MAX_SPREAD:.0%}"
    cost = fmean(steps_s) / centre - 1
    if cost > MAX_OUTLIER_COST:
        yield (
            f"slow outliers, up to {max(steps_s) / centre:.1f} times the median, lift the mean "
            f"{cost:.1%} > {MAX_OUTLIER_COST:.0%} above it"
        )


def _drift(steps_s: Sequence[float]) -> Iterator[str]:
    found = trend(steps_s)
    if found.p_value < DRIFT_P_VALUE and abs(found.change) > MAX_DRIFT:
        way = "rose" if found.change > 0 else "fell"
        yield (
            f"step time {way} {abs(found.change):.1%} > {MAX_DRIFT:.0%} from the first third of the "
            f"steps to the last (p = {found.p_value:.2g})"
        )


def _modes(steps_s: Sequence[float]) -> Iterator[str]:
    modes = two_modes(steps_s)
    if modes and modes.upper - modes.lower > MIN_MODE_DISTANCE * median(steps_s):
        yield (
            f"two modes: {1 - modes.upper_share:.0%} of the steps near {modes.lower * 1e3:.4g} ms, "
            f"{modes.upper_share:.0%} near {modes.upper * 1e3:.4g} ms"
        )


def judge_times(steps_s: Sequence[float], telemetry: Telemetry | None) -> Validity:
    """The verdict on one process's timed steps in the order they ran, in seconds, above 0.

    `throttled`: the device slowed itself down (a thermal or hardware slowdown, or a power cap under which the
    clock fell). `unstable`: there are too few steps, or their spread, outliers, drift or two modes exceed the
    limits above. All reasons are given, throttling first.
    """
    throttling = tuple(_throttling(telemetry)) if telemetry else ()
    if len(steps_s) < MIN_STEPS:
        unrest: tuple[str, ...] = (f"{len(steps_s)} timed steps < {MIN_STEPS}",)
    else:
        unrest = (*_spread(steps_s), *_drift(steps_s), *_modes(steps_s))
    verdict: Verdict = "throttled" if throttling else "unstable" if unrest else "stable"
    return Validity(verdict=verdict, reasons=throttling + unrest)


QUIET = "stop the other programs, or keep them off these cores, and run again"
FREE_GPU = "end the other programs on the GPU, or choose a free one, and run again"
COOL = "cool the device, raise its power limit or lock a lower clock, and run again"
LONGER = "time more steps, on a machine that does nothing else"
REMEDIES = (
    ("other programs used", QUIET),
    ("other work took", QUIET),
    ("on the GPU, holding", FREE_GPU),
    ("utilised by something else", FREE_GPU),
    ("held by something else", FREE_GPU),
    ("power cap", COOL),
    ("the device reported", COOL),
    ("SM clock", COOL),
    ("timed steps <", "time more steps, or a smaller case"),
    ("rose", COOL),
    ("fell", "warm up for longer, and run again"),
    ("no steady step time", "warm up for longer, and run again"),
    ("middle half", LONGER),
    ("slow outliers", LONGER),
    ("two modes", LONGER),
    ("in process", "measure in a fresh process, which runs nothing else"),
)
"""Parts of reasons (of `stats.validity` or `lab.measure`) with their remedies. The first match counts. A
steady rise of step times mostly means that the device grows warm. Stored records have "other work took"."""


def remedies(reasons: Iterable[str]) -> tuple[str, ...]:
    """The remedies of the reasons in their order, each once."""
    found = (
        next((remedy for part, remedy in REMEDIES if part in reason), None) for reason in reasons
    )
    return tuple(dict.fromkeys(each for each in found if each is not None))


MIN_VALUES = 20
"""The fewest values to test. With 10 values one normal sample in fifty splits by the rule below, with 20 none
of a thousand did."""
MIN_SHARE = 0.2
"""The minimum share of the smaller group. A smaller group is outliers, which do not move the median."""
MIN_DISTANCE_SD = 6.0
"""The minimum distance of the groups' means, in standard deviations within them. The halves of a normal
distribution are 2.6 apart, those of a uniform one 3.5; 20 exponential values reach 6 by chance once in
fifty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoModes:
    """The medians of the lower and the upper group, and the share of the values in the upper one."""

    lower: float
    upper: float
    upper_share: float


def _best_split(ordered: Sequence[float]) -> int:
    """The size of the lower group where the split explains most of the variance.

    Otsu 1979, "A threshold selection method from gray-level histograms", equation 18, on values.
    """
    n, total, below = len(ordered), math.fsum(ordered), 0.0
    best, best_between = 1, -1.0
    for k in range(1, n):
        below += ordered[k - 1]
        gap = (total - below) / (n - k) - below / k
        between = k * (n - k) * gap * gap
        if between > best_between:
            best, best_between = k, between
    return best


def two_modes(values: Sequence[float]) -> TwoModes | None:
    """The two groups of the values, or None where one group suffices or the values are few."""
    if len(values) < MIN_VALUES:
        return None
    ordered = sorted(values)
    k = _best_split(ordered)
    groups = (ordered[:k], ordered[k:])
    if min(len(group) for group in groups) < MIN_SHARE * len(ordered):
        return None
    means = [math.fsum(group) / len(group) for group in groups]
    squares = math.fsum(
        (value - mean) ** 2 for group, mean in zip(groups, means, strict=True) for value in group
    )
    if means[1] - means[0] <= MIN_DISTANCE_SD * math.sqrt(squares / len(ordered)):
        return None
    return TwoModes(
        lower=median(groups[0]),
        upper=median(groups[1]),
        upper_share=len(groups[1]) / len(ordered),
    )
