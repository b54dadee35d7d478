"""What the numbers of `warmup` say."""

from statistics import median

from peakward.records.case import ModelCase
from peakward.records.measurement import Measurement
from peakward.records.study import Conclusion, Unit
from peakward.studies.cases import place
from peakward.studies.parts import evidence, say
from peakward.studies.readings import ratio
from peakward.studies.warmup.grid import N_TIMED, WARMUPS, Reading


def judge(rows: tuple[Reading, ...], warmup_steps: int) -> tuple[Conclusion, ...]:
    """How far off the statistics are after so many warm-up steps, over all cases that tell."""
    told = [
        (row, mean, row.over_steady("median") or 1.0, row.over_steady("sd") or 0.0)
        for row in rows
        if row.warmup_steps == warmup_steps < max(WARMUPS)
        and (mean := row.over_steady("mean")) is not None
    ]
    if not told:
        return ()
    both = [each for row, *_ in told for each in (row.measurement, row.steady)]
    worst, worst_mean, *_ = max(told, key=lambda each: each[1])
    middle = median(mean for _, mean, *_ in told)
    furthest = max((each[2] for each in told), key=lambda over: abs(over - 1))
    spread = median(each[3] for each in told)
    return (
        say(
            "After {warmup} warm-up steps the mean of {n} steps is {middle} the steady time (median "
            "of {cases} cases), at worst {worst} ({place}); the median is {furthest} where it is "
            "furthest off; the standard deviation is {spread} the steady time.",
            warmup=evidence("warm-up steps", warmup_steps, "count", *both),
            n=evidence("timed steps", N_TIMED, "count", *both),
            middle=evidence("mean over the steady time, median", middle, "ratio", *both),
            cases=evidence("cases", len(told), "count", *both),
            worst=evidence(
                "mean over the steady time, largest",
                worst_mean,
                "ratio",
                worst.measurement,
                worst.steady,
            ),
            place=place(worst.case),
            furthest=evidence("median over the steady time, furthest", furthest, "ratio", *both),
            spread=evidence(
                "standard deviation over the steady time, median", spread, "ratio", *both
            ),
        ),
    )


def explain(measurement: Measurement) -> Conclusion:
    """What the first step did, as far as this device tells."""
    first, case = measurement.first_step, measurement.case
    assert first is not None and isinstance(case, ModelCase)
    told = (
        ("{load} of it loading kernels", "load", _share(first.module_load_s, first.profiled_s)),
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
