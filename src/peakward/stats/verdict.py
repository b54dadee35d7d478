"""What an interval says of a candidate: its verdict and the words for it, from one reading of its ends."""

from typing import NamedTuple

import msgspec

from peakward.records.measurement import Interval
from peakward.records.trial import Trial, TrialVerdict

LEAST_GAIN = 0.01
"""A lever whose speed-up is below 1.01 is not worth its complication."""
WORTH_HAVING = 1 / (1 + LEAST_GAIN)
"""The largest ratio of candidate over base that is worth having."""

BETTER = {"time": "faster", "memory": "less memory", "energy": "less energy"}
WORSE = {"time": "slower", "memory": "more memory", "energy": "more energy"}
"""By `Trial.judged_by`."""


class Reading(NamedTuple):
    """What an interval of candidate over base supports."""

    verdict: TrialVerdict
    words: str


def read(ratio: Interval, *, judged_by: str = "time") -> Reading:
    """Whether a candidate is worth keeping.

    - `kept`: the whole interval is below 1 and the estimate is worth having.
    - `rejected`: the whole interval is above what is worth having: the candidate is worse, or no gain
      that counts is in the interval.
    - `inconclusive`: all else. More pairs would tell.
    """
    better, worse, gain = BETTER[judged_by], WORSE[judged_by], f"{LEAST_GAIN:.0%}"
    if ratio.low > 1:
        return Reading("rejected", f"{worse} in the whole interval")
    if ratio.high < 1:
        if ratio.estimate <= WORTH_HAVING:
            return Reading("kept", f"{better} in the whole interval")
        if ratio.low > WORTH_HAVING:
            return Reading("rejected", f"{better}, but by less than {gain}")
        return Reading("inconclusive", f"{better}, but perhaps by less than {gain}")
    if ratio.low > WORTH_HAVING:
        return Reading("rejected", f"no gain of {gain} in the interval")
    return Reading("inconclusive", f"the interval holds both a gain of {gain} and none")


def judged(trial: Trial, *, rounds: str = "processes") -> Trial:
    """The trial with the verdict and the reason that its ratio's interval gives.

    A screening keeps nothing: what changed between its two measurements is not in their interval.
    `rounds` is what each pair of a confirmation comes from. Doubts about the times are told beside the
    verdict and change nothing in it: 2.3 times slower is slower on a noisy machine too.
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
    """A trial as it is judged now.

    Trials that were stored before doubts were kept apart had a screening's verdict depend on them, so that
    0.386× (0.383–0.414×) was called inconclusive. What was rejected for another reason than its interval,
    has no ratio, or must not be believed stands as it was stored.
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
    """Where they stood until they had a field: behind the parenthesis of a confirmation, at the end of a
    screening."""
    if reason.endswith("times that are not steady"):
        return ("its times were not steady",)
    return tuple(filter(None, reason.partition("); ")[2].split("; ")))
