"""Compares base and candidate, by pairs or by two medians, and gives the verdict."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple

import msgspec

from peakward.records.lever import Pair, Trial, TrialVerdict
from peakward.records.measurement import Interval
from peakward.stats.summary import student_t_quantile


def ratio_interval(pairs: Sequence[Pair], *, level: float = 0.95) -> Interval:
    """Candidate's step time over base's: the geometric mean of the pairs' ratios, with its interval.

    The t-interval on log(candidate / base), carried back by exp: a ratio and its inverse then give
    the same answer, and what slows both arms of a pair (the clock of that minute) cancels. A
    process draws its memory layout and its host's speed once for all its pairs, so pairs of
    several processes count as one observation a process, their mean (Kalibera & Jones 2013,
    "Rigorous benchmarking in reasonable time", section 6). Pairs of one process count each, and
    the interval then holds for that process alone.

    Raises:
        ValueError: fewer than two pairs, which have no spread.
    """
    if len(pairs) < 2:
        raise ValueError(f"expected at least two pairs, got {len(pairs)}")
    logs = _observations((pair.process, pair.candidate_s / pair.base_s) for pair in pairs)
    return _interval(logs, level)


def energy_interval(pairs: Sequence[Pair], *, level: float = 0.95) -> Interval | None:
    """Candidate's energy of a step over base's, by the method of `ratio_interval`. None where there are fewer
    than two pairs, or one lacks a side."""
    counted = [
        (pair.process, pair.candidate_j / pair.base_j)
        for pair in pairs
        if pair.base_j and pair.candidate_j
    ]
    if len(counted) < max(2, len(pairs)):
        return None
    return _interval(_observations(counted), level)


def _interval(logs: Sequence[float], level: float) -> Interval:
    centre = fmean(logs)
    t = student_t_quantile((1 + level) / 2, len(logs) - 1)
    half_width = t * stdev(logs) / math.sqrt(len(logs))
    return Interval(
        estimate=math.exp(centre),
        low=math.exp(centre - half_width),
        high=math.exp(centre + half_width),
        level=level,
    )


def _observations(ratios: Iterable[tuple[int, float]]) -> list[float]:
    """The logarithms of the ratios. Several processes count as one mean each."""
    by_process: dict[int, list[float]] = {}
    for process, ratio in ratios:
        by_process.setdefault(process, []).append(math.log(ratio))
    if len(by_process) == 1:
        return next(iter(by_process.values()))
    return [fmean(logs) for logs in by_process.values()]


def inverted(ratio: Interval) -> Interval:
    """The speed-up for a ratio of times."""
    return Interval(
        estimate=1 / ratio.estimate, low=1 / ratio.high, high=1 / ratio.low, level=ratio.level
    )


Change = Literal["slower", "faster", "same", "inconclusive"]


def median_ratio(before: Interval, after: Interval) -> Interval:
    """The ratio after / before of two positive medians, from the interval of each.

    The method of variance estimates recovery on logarithms: with d = ln after − ln before, the
    lower limit is d − √((ln after − ln after_low)² + (ln before_high − ln before)²), the upper one
    its mirror image (Zou & Donner 2008, Statistics in Medicine 27:1693). Unlike a
    normal approximation it keeps the skew of bootstrap intervals. It knows nothing of what varies
    between runs and shows in neither interval, hence the threshold of `judge_change`.

    Raises:
        ValueError: the two intervals have different levels, or a limit is not positive.
    """
    if before.level != after.level:
        raise ValueError(f"expected intervals of one level, got {before.level} and {after.level}")
    if min(before.low, after.low) <= 0:
        raise ValueError(f"expected positive limits, got {before.low} and {after.low}")
    difference = math.log(after.estimate / before.estimate)
    down = math.hypot(math.log(after.estimate / after.low), math.log(before.high / before.estimate))
    up = math.hypot(math.log(after.high / after.estimate), math.log(before.estimate / before.low))
    return Interval(
        estimate=math.exp(difference),
        low=math.exp(difference - down),
        high=math.exp(difference + up),
        level=before.level,
    )


def judge_change(ratio: Interval, *, threshold: float) -> Change:
    """The change that a time ratio proves when changes within `threshold` do not matter.

    The band is 1 / (1 + threshold) … 1 + threshold. `slower`: the whole interval lies above it. `faster`: it
    lies below. `same`: it lies inside. `inconclusive`: otherwise.
    """
    upper = 1 + threshold
    lower = 1 / upper
    if ratio.low > upper:
        return "slower"
    if ratio.high < lower:
        return "faster"
    if lower <= ratio.low and ratio.high <= upper:
        return "same"
    return "inconclusive"


LEAST_GAIN = 0.01
"""The least gain worth its complication: a speed-up of 1.01."""
WORTH_HAVING = 1 / (1 + LEAST_GAIN)
"""The largest ratio of candidate over base that is worth keeping."""
BETTER = {"time": "faster", "memory": "less memory", "energy": "less energy"}
WORSE = {"time": "slower", "memory": "more memory", "energy": "more energy"}
"""Words for a better and a worse candidate, by `Trial.judged_by`."""


class Judgement(NamedTuple):
    """The verdict that an interval of candidate over base supports, and its words."""

    verdict: TrialVerdict
    words: str


def read(ratio: Interval, *, judged_by: str = "time") -> Judgement:
    """Judge whether a candidate is worth keeping.

    - `kept`: the whole interval is below 1, and the estimate is worth having.
    - `rejected`: the whole interval is above the largest ratio worth having: the candidate is worse, or no
      gain that counts lies in the interval.
    - `inconclusive`: all other cases. More pairs would decide.
    """
    better, worse, gain = BETTER[judged_by], WORSE[judged_by], f"{LEAST_GAIN:.0%}"
    if ratio.low > 1:
        return Judgement("rejected", f"{worse} in the whole interval")
    if ratio.high < 1:
        if ratio.estimate <= WORTH_HAVING:
            return Judgement("kept", f"{better} in the whole interval")
        if ratio.low > WORTH_HAVING:
            return Judgement("rejected", f"{better}, but by less than {gain}")
        return Judgement("inconclusive", f"{better}, but perhaps by less than {gain}")
    if ratio.low > WORTH_HAVING:
        return Judgement("rejected", f"no gain of {gain} in the interval")
    return Judgement("inconclusive", f"the interval holds both a gain of {gain} and none")


def judged(trial: Trial, *, rounds: str = "processes") -> Trial:
    """The trial with the verdict and reason of its ratio's interval.

    A screening never keeps a lever, because drift between its two measurements is not in the interval.
    `rounds` names the source of each confirmation pair. Doubts about the times are told beside the verdict
    and do not change it: 2.3 times slower is slower on a noisy machine too.
    """
    assert trial.ratio is not None
    verdict, words = read(trial.ratio, judged_by=trial.judged_by)
    if trial.stage == "screened":
        unproved = verdict == "kept"
        verdict = "inconclusive" if unproved else verdict
        said = f"{words} when screened{', not confirmed' if unproved else ''}"
    else:
        n_rounds = len({pair.process for pair in trial.pairs})
        said = f"{words} (a pair in each of {n_rounds} {rounds})"
    reason = "; ".join((said, *(trial.doubts or ())))
    return msgspec.structs.replace(trial, verdict=verdict, reason=reason)


DOUBTLESS = 0.99
"""The level at which two processes decide. Simulated as for three (`tune.costs`): a lever without effect is
kept in 0.0, 1.7, 3.8 and 4.5% of trials at 0.3, 1, 2 and 4% noise between processes, instead of 0.0, 1.4,
3.6 and 4.2% without a look at two; one that saves 20% takes 2.2, 2.6, 2.8 and 2.9 processes instead of 3."""


def beyond_doubt(trial: Trial) -> bool:
    """Whether the interval of the level `DOUBTLESS` gives the trial's verdict too; never of one whose gain
    cannot be."""
    if trial.verdict == "inconclusive" or trial.judged_by == "memory":
        return trial.verdict != "inconclusive"
    intervals = {"time": ratio_interval, "energy": energy_interval}
    interval = intervals[trial.judged_by](trial.pairs, level=DOUBTLESS)
    if interval is None:
        return False
    return read(interval, judged_by=trial.judged_by).verdict == trial.verdict


def reread(trial: Trial) -> Trial:
    """The stored trial with a verdict by today's rules.

    Older trials had doubts inside a screening's verdict, so 0.386× (0.383–0.414×) was called inconclusive. A
    trial keeps its stored verdict where it was rejected for another reason than its interval, has no ratio,
    or must not be believed.
    """
    told_apart = trial.doubts is not None
    believed = trial.numerics is None or trial.numerics.verdict == "holds"
    impossible = trial.bound is not None and trial.bound.broken
    timed = trial.status == "ok" and trial.time_ratio is not None and trial.judged_by == "time"
    if told_apart or not believed or impossible or not timed or trial.stage == "refused":
        return trial
    again = judged(msgspec.structs.replace(trial, doubts=_old_doubts(trial.reason)))
    other_reason = trial.verdict == "rejected" and again.verdict != "rejected"
    return trial if other_reason else again


def _old_doubts(reason: str) -> tuple[str, ...]:
    """Doubts from the reason of an older trial: after a confirmation's parenthesis, at the end of a
    screening's reason."""
    if reason.endswith("times that are not steady"):
        return ("its times were not steady",)
    return tuple(filter(None, reason.partition("); ")[2].split("; ")))
