"""Verdicts on candidates: one function reads an interval's ends and gives both the verdict and its words."""

from typing import NamedTuple

import msgspec

from peakward.records.measurement import Interval
from peakward.records.trial import Trial, TrialVerdict

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
