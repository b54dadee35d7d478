"""Trials of many runs to how the predictions of their levers fared. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from peakward.records.case import LeverCase
from peakward.records.lever import Errors, LeverEntry, LeverLedger, Miss, Pair, Trial, Unpredicted
from peakward.records.measurement import Interval
from peakward.stats.pairs import LEAST_GAIN

N_WORST = 10
NOT_KEPT = "predictions were not kept yet when it was stored"


class Tried(NamedTuple):
    """A trial and the device that it ran on."""

    trial: Trial
    device: str


def lever_ledger(tried: Iterable[Tried], sources: Sequence[str]) -> LeverLedger:
    """Every comparison once.

    Args:
        tried: the oldest first. A trial that a later run made of the same stored times, and a screening
            of what was also confirmed, do not count again.
        sources: where they were read.
    """
    kept = _each_once(each for each in tried if each.trial.stage != "refused")
    groups: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial, device in kept:
        groups[device, trial.lever].append(trial)
    misses = sorted(_misses(kept), key=lambda each: -abs(math.log1p(each.error)))
    return LeverLedger(
        sources=tuple(sources),
        n_trials=len(kept),
        entries=tuple(_entry(*names, groups[names]) for names in sorted(groups)),
        worst=tuple(misses[:N_WORST]),
        unpredicted=_unpredicted(trial for trial, _ in kept),
        impossible=tuple(each.trial.id for each in kept if _impossible(each.trial)),
    )


_Compared = tuple[str, LeverCase, LeverCase, str]


def _each_once(tried: Iterable[Tried]) -> list[Tried]:
    """The first trial of each observation; of what was confirmed, the confirmations alone."""
    first: dict[tuple[_Compared, str, tuple[Pair, ...], str], Tried] = {}
    for each in tried:
        trial = each.trial
        first.setdefault((_compared(trial), trial.stage, trial.pairs, trial.status), each)
    confirmed = {_compared(each.trial) for each in first.values() if _is_confirmed(each.trial)}
    return [
        each
        for each in first.values()
        if _is_confirmed(each.trial) or _compared(each.trial) not in confirmed
    ]


def _is_confirmed(trial: Trial) -> bool:
    return trial.stage == "confirmed" and trial.time_ratio is not None


def _compared(trial: Trial) -> _Compared:
    return trial.lever, trial.base, trial.candidate, trial.environment_key


def _entry(device: str, lever: str, trials: Sequence[Trial]) -> LeverEntry:
    verdicts = Counter(trial.verdict for trial in trials)
    numerics = Counter(trial.numerics.verdict for trial in trials if trial.numerics)
    timed = [times for trial in trials if (times := _times(trial)) is not None]
    memories = [memory for trial in trials if (memory := _memories(trial)) is not None]
    decided = [(told, found) for told, found in timed if _is_decided(found)]
    ratios = [(told.estimate, found.estimate) for told, found in timed]
    return LeverEntry(
        lever=lever,
        device=device,
        n_trials=len(trials),
        n_kept=verdicts["kept"],
        n_rejected=verdicts["rejected"],
        n_inconclusive=verdicts["inconclusive"],
        n_numerics_held=numerics["holds"],
        n_numerics_violated=numerics["violated"],
        time=_errors(ratios),
        n_within=sum(_within(*both) for both in timed),
        n_decided=len(decided),
        n_sign_right=sum(_same_side(*both) for both in decided),
        memory=_errors(memories),
    )


def _times(trial: Trial) -> tuple[Interval, Interval] | None:
    """Predicted and measured."""
    if trial.foretold is None or trial.foretold.time_ratio is None or trial.time_ratio is None:
        return None
    return trial.foretold.time_ratio, trial.time_ratio


def _memories(trial: Trial) -> tuple[float, float] | None:
    told = trial.foretold.memory_ratio if trial.foretold else None
    if told is None or not trial.base_peak_bytes or not trial.candidate_peak_bytes:
        return None
    return told, trial.candidate_peak_bytes / trial.base_peak_bytes


def _errors(ratios: Sequence[tuple[float, float]]) -> Errors | None:
    if not ratios:
        return None
    errors = sorted(abs(found / told - 1) for told, found in ratios)
    return Errors(
        n=len(ratios),
        predicted=median(told for told, _ in ratios),
        measured=median(found for _, found in ratios),
        median=median(errors),
        p90=errors[math.ceil(0.9 * len(errors)) - 1],
    )


def _within(told: Interval, found: Interval) -> bool:
    return told.low <= found.estimate <= told.high


def _is_decided(found: Interval) -> bool:
    """An interval that holds 1 says nothing of the side: of a host-bound step's screenings many do."""
    large = abs(math.log(found.estimate)) > LEAST_GAIN
    return large and not found.low <= 1 <= found.high


def _same_side(told: Interval, found: Interval) -> bool:
    return (told.estimate < 1) == (found.estimate < 1)


def _misses(tried: Iterable[Tried]) -> Iterable[Miss]:
    for trial, device in tried:
        both = _times(trial)
        if both is None:
            continue
        told, found = both
        yield Miss(
            trial=trial.id,
            lever=trial.lever,
            device=device,
            base=trial.base,
            verdict=trial.verdict,
            predicted=told,
            measured=found,
            error=found.estimate / told.estimate - 1,
            within=_within(told, found),
        )


def _unpredicted(trials: Iterable[Trial]) -> tuple[Unpredicted, ...]:
    reasons = Counter(reason for trial in trials for reason in _reasons(trial))
    return tuple(Unpredicted(reason=reason, n=n) for reason, n in reasons.most_common())


def _reasons(trial: Trial) -> tuple[str, ...]:
    """Why its time was not predicted; one at most."""
    if trial.foretold is None:
        return (NOT_KEPT,)
    if trial.foretold.time_ratio is not None:
        return ()
    gaps = [gap.reason for gap in trial.foretold.absent if gap.figure == "time"]
    return tuple(gaps[:1])


def _impossible(trial: Trial) -> bool:
    return trial.bound is not None and trial.bound.broken
