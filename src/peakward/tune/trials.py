"""Makes trials of cases timed in turn, or of the reason why they were not."""

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from peakward.records.case import LeverCase
from peakward.records.lever import Bound, Lever, NumericsVerdict, Pair, Trial
from peakward.stats.pairs import energy_interval, ratio_interval
from peakward.stats.pairs import judged as judged_by_times

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
        first if not more else f"{first}, and in {len(more)} turns more alike"
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
        reason = f"not {numerics.declared} as declared: {numerics.reason}"
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
