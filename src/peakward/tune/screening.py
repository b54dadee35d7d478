"""Judges a lever by one short measurement of each arm: enough to drop it, not to keep it."""

import msgspec

from peakward.records.case import LeverCase
from peakward.records.lever import Pair, Trial, TrialVerdict
from peakward.records.measurement import Interval, Measurement
from peakward.stats.pairs import WORTH_HAVING, judged
from peakward.tune.trials import trial_of


def screened(name: str, base: Measurement, candidate: Measurement, *, wall_s: float) -> Trial:
    """Returns the trial that one short measurement of each arm gives."""
    ours, theirs = base.case, candidate.case
    assert isinstance(ours, LeverCase)
    assert isinstance(theirs, LeverCase)
    peaks = [
        each.memory.peak_allocated_bytes if each.memory else None for each in (base, candidate)
    ]
    trial = msgspec.structs.replace(
        trial_of(name, ours, theirs, base.environment.key, stage="screened"),
        base_peak_bytes=peaks[0],
        candidate_peak_bytes=peaks[1],
        wall_s=wall_s,
    )
    if candidate.summary is None:
        return _failed(trial, candidate, "rejected")
    if base.status == "oom":
        return msgspec.structs.replace(trial, reason="runs where the base is out of memory")
    if base.summary is None:
        return _failed(trial, base, "inconclusive")
    base_j, candidate_j = _energy_j(base), _energy_j(candidate)
    timed = msgspec.structs.replace(
        trial,
        pairs=(
            Pair(
                process=0,
                base_s=base.summary.median_s.estimate,
                candidate_s=candidate.summary.median_s.estimate,
                base_j=base_j,
                candidate_j=candidate_j,
            ),
        ),
        time_ratio=_apart(base.summary.median_s, candidate.summary.median_s),
        energy_ratio=_once(base_j, candidate_j),
        doubts=_doubts(base, candidate),
    )
    return judged(timed)


def _doubts(*arms: Measurement) -> tuple[str, ...]:
    """The verdicts on the arms' times that are not `stable`; their reasons are in the measurements."""
    verdicts = (each.validity.verdict for each in arms if each.validity is not None)
    return tuple(f"{each} times" for each in dict.fromkeys(verdicts) if each != "stable")


def rescues(trial: Trial) -> bool:
    """Whether the candidate was seen to run where the base does not fit."""
    return trial.stage == "screened" and trial.status == "ok" and not trial.pairs


def promising(trial: Trial) -> bool:
    """Whether a screening saw a gain that is worth confirming."""
    ratio = trial.ratio
    return trial.verdict == "inconclusive" and ratio is not None and ratio.estimate <= WORTH_HAVING


def _failed(trial: Trial, arm: Measurement, verdict: TrialVerdict) -> Trial:
    """The trial with one arm's failure; one that the arm did not end itself is no verdict on the lever."""
    return msgspec.structs.replace(
        trial,
        status=arm.status,
        verdict=verdict if arm.final else "inconclusive",
        reason=arm.reason or arm.status,
        ended_by=arm.ended_by or "case",
    )


def _apart(base: Interval, candidate: Interval) -> Interval:
    """The ratio of two medians measured apart, as wide as their own intervals allow.

    What changed between the two measurements is not in it: such an interval may reject, and only
    pairs may keep.
    """
    return Interval(
        estimate=candidate.estimate / base.estimate,
        low=candidate.low / base.high,
        high=candidate.high / base.low,
    )


def _energy_j(measured: Measurement) -> float | None:
    return None if measured.telemetry is None else measured.telemetry.energy_per_step_j


def _once(base_j: float | None, candidate_j: float | None) -> Interval | None:
    """The ratio of what was counted once on each side: nobody knows how it varies, so that it has no
    width."""
    if not base_j or not candidate_j:
        return None
    ratio = candidate_j / base_j
    return Interval(estimate=ratio, low=ratio, high=ratio)
