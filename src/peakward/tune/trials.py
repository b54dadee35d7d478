"""Makes trials: of a screening, of cases timed in turn, or of the reason why nothing was timed."""

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from peakward.records.case import LeverCase
from peakward.records.lever import Bound, Lever, NumericsVerdict, Pair, Trial, TrialVerdict
from peakward.records.measurement import Interval, Measurement
from peakward.stats.pairs import WORTH_HAVING, energy_interval, ratio_interval
from peakward.stats.pairs import judged as judged_by_times
from peakward.stats.summary import typical_s

if TYPE_CHECKING:
    from peakward.lab.measure.messages import Turn, TurnsTimed


class Comparison(NamedTuple):
    """A question that a confirmation answers."""

    name: str
    """The lever's, or "composition"."""
    base: LeverCase
    candidate: LeverCase
    numerics: NumericsVerdict | None

    @property
    def key(self) -> tuple[str, LeverCase, LeverCase]:
        """Under which its trial is stored."""
        return self.name, self.base, self.candidate


def refused(lever: Lever, base: LeverCase, candidate: LeverCase, key: str, reason: str) -> Trial:
    """A lever that cannot apply here."""
    return trial_of(
        lever.name, base, candidate, key, stage="refused", verdict="rejected", reason=reason
    )


def judged(
    comparison: Comparison,
    rounds: Sequence[Mapping[LeverCase, "Turn"]],
    key: str,
    wall_s: float,
    where: str = "processes",
) -> Trial:
    """The verdict from a pair of each process, or of each round `where` all share one."""
    name, base, candidate, numerics = comparison
    pairs = tuple(
        Pair(
            process=i,
            base_s=turns[base].median_s,
            candidate_s=turns[candidate].median_s,
            base_j=turns[base].energy_j,
            candidate_j=turns[candidate].energy_j,
        )
        for i, turns in enumerate(rounds)
    )
    doubts = _each_once(
        doubt for turns in rounds for case in (base, candidate) for doubt in turns[case].doubts
    )
    timed = msgspec.structs.replace(
        trial_of(name, base, candidate, key, stage="confirmed", numerics=numerics),
        pairs=pairs,
        time_ratio=ratio_interval(pairs),
        energy_ratio=energy_interval(pairs),
        doubts=doubts,
        base_peak_bytes=max(turns[base].peak_bytes for turns in rounds),
        candidate_peak_bytes=max(turns[candidate].peak_bytes for turns in rounds),
        wall_s=wall_s,
    )
    return judged_by_times(timed, rounds=where)


def _each_once(doubts: Iterable[str]) -> tuple[str, ...]:
    """Keeps the first of doubts that differ in their figures alone, with the number of the others."""
    alike: dict[str, list[str]] = {}
    for doubt in doubts:
        alike.setdefault(re.sub(r"[\d.]+", "#", doubt), []).append(doubt)
    return tuple(
        first
        if not more
        else f"{first}, and alike in {len(more)} more turn{'' if len(more) == 1 else 's'}"
        for first, *more in alike.values()
    )


def held_to(trial: Trial, bound: Bound | None) -> Trial:
    """The trial with its bound. A gain beyond it is kept by nobody: it is an error of ours."""
    if bound is None or trial.time_ratio is None:
        return trial
    broken = trial.time_ratio.high < bound.least_time_ratio
    held = msgspec.structs.replace(trial, bound=msgspec.structs.replace(bound, broken=broken))
    if not broken:
        return held
    what = {
        "profile": "the phases that it leaves alone take",
        "floor": "the arithmetic takes at the device's peak",
    }
    reason = (
        f"faster than can be: {what[bound.basis]} {bound.least_time_ratio:.3f} of the base's step, and "
        f"it measured {trial.time_ratio.estimate:.3f} in {len(trial.pairs)} processes: an error of ours"
    )
    return msgspec.structs.replace(held, verdict="inconclusive", reason=reason)


def failed_beside(
    comparison: Comparison, key: str, culprit: LeverCase | None, timed: "TurnsTimed"
) -> Trial:
    """The trial where a case failed before all were timed: its candidate's failure, or that of
    another case, which says nothing about its lever. What no case ended, it ended for all."""
    name, base, candidate, numerics = comparison
    trial = trial_of(name, base, candidate, key, stage="confirmed", numerics=numerics)
    reason = timed.reason or timed.status
    if culprit in (None, candidate) or timed.ended_by != "case":
        return msgspec.structs.replace(
            trial, status=timed.status, reason=reason, ended_by=timed.ended_by
        )
    whose = "its base" if culprit == base else "a case timed with it"
    return untimed(comparison, key, f"{whose} failed: {reason}")


def untimed(comparison: Comparison, key: str, reason: str) -> Trial:
    """The trial of a comparison whose times are not there: it says nothing of its lever."""
    name, base, candidate, numerics = comparison
    said = f"not timed: {reason}"
    return trial_of(name, base, candidate, key, stage="confirmed", reason=said, numerics=numerics)


def misjudged(trial: Trial, numerics: NumericsVerdict) -> Trial:
    """The trial of a lever whose numbers do not hold, or could not be checked."""
    judged = msgspec.structs.replace(trial, numerics=numerics)
    if numerics.verdict == "violated":
        quality = numerics.quality
        lost = quality is not None and quality.verdict == "violated"
        what = "reads worse" if lost else f"not {numerics.declared} as declared"
        reason = f"{what}: {numerics.reason}"
        return msgspec.structs.replace(judged, verdict="rejected", reason=reason)
    reason = f"its numbers could not be checked: {numerics.reason}"
    return msgspec.structs.replace(judged, verdict="inconclusive", reason=reason)


def trial_of(
    name: str,
    base: LeverCase,
    candidate: LeverCase,
    key: str,
    *,
    stage: str,
    verdict: str = "inconclusive",
    reason: str = "",
    numerics: NumericsVerdict | None = None,
) -> Trial:
    """A new one, of which nothing was measured yet."""
    return Trial(
        id=uuid.uuid4().hex,
        lever=name,
        base=base,
        candidate=candidate,
        environment_key=key,
        stage=stage,  # type: ignore[arg-type]
        verdict=verdict,  # type: ignore[arg-type]
        reason=reason,
        numerics=numerics,
        doubts=(),
    )


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
    base_s, candidate_s = typical_s(base), typical_s(candidate)
    if base_s is None or candidate_s is None:
        return _failed(trial, base, "inconclusive")
    base_j, candidate_j = _energy_j(base), _energy_j(candidate)
    timed = msgspec.structs.replace(
        trial,
        pairs=(
            Pair(
                process=0,
                base_s=base_s.estimate,
                candidate_s=candidate_s.estimate,
                base_j=base_j,
                candidate_j=candidate_j,
            ),
        ),
        time_ratio=_apart(base_s, candidate_s),
        energy_ratio=_once(base_j, candidate_j),
        doubts=_doubts(base, candidate),
    )
    return judged_by_times(timed)


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
