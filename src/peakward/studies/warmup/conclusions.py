"""What the numbers of `warmup` say."""

import math
from statistics import median

from peakward.records.case import ModelCase
from peakward.records.measurement import Measurement
from peakward.records.study import Conclusion, Evidence, Unit
from peakward.studies.cases import place
from peakward.studies.parts import evidence, say
from peakward.studies.readings import ratio
from peakward.studies.warmup.grid import N_TIMED, WARMUPS, Reading, Statistic

BEGINNINGS = (
    "Without warm-up ({warmup} steps)",
    "After {warmup} warm-up step",
    "After {warmup} warm-up steps",
)


def judge(rows: tuple[Reading, ...], warmup_steps: int) -> tuple[Conclusion, ...]:
    """How far off the statistics are after so many warm-up steps, over all cases that tell."""
    told = [
        row
        for row in rows
        if row.warmup_steps == warmup_steps < max(WARMUPS) and row.over_steady("mean") is not None
    ]
    if not told:
        return ()
    both = [each for row in told for each in (row.measurement, row.steady)]
    worst, furthest = (max(told, key=lambda row: _off(row, name)) for name in ("mean", "median"))
    return (
        say(
            BEGINNINGS[min(warmup_steps, 2)] + " the first of {n} timed steps takes {first} the "
            "steady time, their mean is {mean} and their standard deviation {sd} of it, where that of "
            "the steady steps is {noise} (medians of {cases} cases); at worst the mean is {worst} "
            "({place}), and the median {furthest} ({elsewhere}).",
            warmup=evidence("warm-up steps", warmup_steps, "count", *both),
            n=evidence("timed steps", N_TIMED, "count", *both),
            first=_typical(told, "first"),
            mean=_typical(told, "mean"),
            sd=_typical(told, "sd"),
            noise=_noise(told),
            cases=evidence("cases", len(told), "count", *both),
            worst=_furthest(worst, "mean"),
            place=place(worst.case),
            furthest=_furthest(furthest, "median"),
            elsewhere=place(furthest.case),
        ),
    )


def _off(row: Reading, statistic: Statistic) -> float:
    """How far from the steady time, half of it as far as twice."""
    return abs(math.log(row.over_steady(statistic) or 1.0))


def _furthest(row: Reading, statistic: Statistic) -> Evidence:
    quantity = f"{statistic} over the steady time, furthest from it"
    both = (row.measurement, row.steady)
    return evidence(quantity, row.over_steady(statistic) or 0.0, "ratio", *both)


def _noise(told: list[Reading]) -> Evidence:
    """What a deviation must be held against: the median, over cases, of the steady steps' own."""
    steady = [row.steady for row in told if row.steady is not None]
    own = [
        ratio(each.summary.sd_s, each.summary.median_s.estimate) or 0.0
        for each in steady
        if each.summary is not None
    ]
    quantity = "sd of the steady steps over the steady time, median of cases"
    return evidence(quantity, median(own), "ratio", *steady)


def _typical(told: list[Reading], statistic: Statistic) -> Evidence:
    """The median, over cases, of a statistic as a multiple of the steady time."""
    both = [each for row in told for each in (row.measurement, row.steady)]
    value = median(row.over_steady(statistic) or 0.0 for row in told)
    return evidence(f"{statistic} over the steady time, median of cases", value, "ratio", *both)


def explain(measurement: Measurement) -> Conclusion:
    """What the first step did, as far as this device tells."""
    first, case = measurement.first_step, measurement.case
    assert first is not None and isinstance(case, ModelCase)
    told = (
        ("{load} loading kernels", "load", _share(first.module_load_s, first.profiled_s)),
        ("{memory} allocating memory", "memory", _share(first.allocation_s, first.profiled_s)),
        ("{calls} device allocations", "calls", (first.n_device_allocations, "count")),
        ("{faults} page faults", "faults", (first.n_page_faults, "count")),
    )
    known = [(text, name, *figure) for text, name, figure in told if figure[0] is not None]
    return say(
        "The first step of {place} took {step} under a profiler: "
        + ", ".join(text for text, *_ in known)
        + ".",
        place=place(case),
        step=evidence("first step, profiled", first.profiled_s, "s", measurement),
        **{name: evidence(name, value, unit, measurement) for _, name, value, unit in known},
    )


def _share(part_s: float | None, whole_s: float) -> tuple[float | None, Unit]:
    return ratio(part_s, whole_s), "share"
