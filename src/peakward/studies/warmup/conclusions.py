"""What the numbers of `warmup` say."""

import math
from statistics import median

from peakward.records.case import ModelCase
from peakward.records.measurement import Measurement
from peakward.records.study import Conclusion, Evidence
from peakward.studies.cases import place
from peakward.studies.parts import evidence, say
from peakward.studies.readings import ratio
from peakward.studies.warmup.grid import N_TIMED, WARMUPS, FirstStepCost, Reading, Statistic

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
    over = "{cases} case" if len(told) == 1 else "medians of {cases} cases"
    worst, furthest = (max(told, key=lambda row: _off(row, name)) for name in ("mean", "median"))
    return (
        say(
            BEGINNINGS[min(warmup_steps, 2)] + " the first of {n} timed steps takes {first} the "
            "steady time, their mean is {mean} and their standard deviation {sd} of it, where that of "
            "the steady steps is {noise} (" + over + "); at worst the mean is {worst} "
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


def explain(cost: FirstStepCost) -> tuple[Conclusion, ...]:
    """What the first step took longer for than a steady one, in parts that sum to it; nothing where it was
    not timed, or took no longer."""
    cold, excess_s, other_s = cost.cold, cost.excess_s, cost.other_s
    if excess_s is None or other_s is None or excess_s <= 0 or not isinstance(cold.case, ModelCase):
        return ()
    both = (cold, cost.steady)
    texts: list[str] = []
    fields: dict[str, Evidence] = {}
    for i, each in enumerate(cost.parts):
        if each.seconds:
            fields |= _part(f"part{i}", each.name, each.seconds, excess_s, cold)
            texts.append(f"{each.name} {{part{i}}} ({{part{i}_share}})")
    text = "The first step of {place} takes {first}, {excess} longer than a steady one"
    if texts:
        fields |= _part("other", "everything else", other_s, excess_s, cold)
        text += f": {', '.join(texts)}, everything else {{other}} ({{other_share}})"
    elif cost.profile.n_page_faults is not None:
        fields["faults"] = evidence("page faults", cost.profile.n_page_faults, "count", cold)
        text += ", with {faults} page faults"
    if other_s < 0:
        text += "; below zero, for the parts are of a step that ran slower under a profiler"
    return (
        say(
            text + _of_none(cost),
            place=place(cold.case),
            first=evidence("first step", cold.runs[0].steps_s[0], "s", cold),
            excess=evidence("first step beyond a steady one", excess_s, "s", *both),
            **fields,
        ),
    )


def _part(
    key: str, name: str, seconds: float, excess_s: float, cold: Measurement
) -> dict[str, Evidence]:
    return {
        key: evidence(name, seconds, "s", cold),
        f"{key}_share": evidence(f"{name}, of the excess", seconds / excess_s, "share", cold),
    }


def _of_none(cost: FirstStepCost) -> str:
    """The parts that took no time, and those that are not known."""
    none = [each.name for each in cost.parts if each.seconds == 0]
    unknown = [each.name for each in cost.parts if each.seconds is None]
    text = f"; there was no {' and no '.join(none)}." if none else "."
    return f"{text} Not measured in this record: {', '.join(unknown)}." if unknown else text
