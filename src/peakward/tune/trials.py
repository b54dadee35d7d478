"""One lever against one base: screened, its numbers checked, confirmed in pairs."""

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from peakward.records.case import ModelCase
from peakward.records.lever import Lever, NumericsClass
from peakward.records.measurement import Interval, Measurement
from peakward.records.trial import NumericsVerdict, Pair, Trial, TrialVerdict
from peakward.stats.pairs import judge_time, ratio_interval
from peakward.tune.costs import CONFIRM_ORDERS, EXTRA_ORDERS, PAIR, SCREEN

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

LEAST_GAIN = 0.01
"""A lever that saves less than this share of the step is not worth its complication."""


def refused(lever: Lever, base: ModelCase, candidate: ModelCase, key: str, reason: str) -> Trial:
    """A lever that cannot apply here."""
    return _trial(
        lever.name, base, candidate, key, stage="refused", verdict="rejected", reason=reason
    )


class Laboratory:
    """Tries levers through a sweep, which keeps what it measured."""

    def __init__(self, sweep: "Sweep", store: "Store") -> None:
        self._sweep, self._store = sweep, store
        self._key = sweep.environment.key

    def screen(self, lever: Lever, base: ModelCase, candidate: ModelCase) -> Trial:
        """A quick look: one short measurement of each arm, one after the other."""
        start_s = time.monotonic()
        ours, theirs = (self._sweep.measure(case, SCREEN) for case in (base, candidate))
        return _screened(lever, ours, theirs, self._key, time.monotonic() - start_s)

    def check(
        self, declared: NumericsClass, base: ModelCase, candidate: ModelCase
    ) -> NumericsVerdict:
        """Whether the candidate computes what its class promises."""
        return self._sweep.workers.numerics(base, candidate, declared)

    def confirm(
        self,
        name: str,
        base: ModelCase,
        candidate: ModelCase,
        numerics: NumericsVerdict | None,
        *,
        affords_more: Callable[[], bool],
    ) -> Trial:
        """Two pairs in each of three processes, and in two more where those cannot tell and
        `affords_more` has the time."""
        done = self._store.trial(name, base, candidate, self._key)
        if done is not None and done.stage == "confirmed" and done.status == "ok":
            return done
        start_s = time.monotonic()
        trial = _trial(name, base, candidate, self._key, stage="confirmed", numerics=numerics)
        for order in CONFIRM_ORDERS:
            trial = self._more_pairs(trial, order)
        if trial.verdict == "inconclusive":
            if trial.status == "ok" and not affords_more():
                # Not stored: the same command with more time asks again.
                return msgspec.structs.replace(trial, wall_s=time.monotonic() - start_s)
            for order in EXTRA_ORDERS:
                trial = self._more_pairs(trial, order)
        trial = msgspec.structs.replace(trial, wall_s=time.monotonic() - start_s)
        if trial.status == "ok":
            self._store.add_trial(trial)
        return trial

    def _more_pairs(self, trial: Trial, order: str) -> Trial:
        """The trial with another process's pairs, judged anew."""
        if trial.status != "ok":
            return trial
        if trial.pairs:
            # The next process: each process draws its own memory layout and its own host speed.
            self._sweep.workers.close()
        outcome = self._sweep.workers.pairs(trial.base, trial.candidate, order, PAIR)
        if outcome.status != "ok":
            arm = "" if outcome.failed_arm is None else f" (the {outcome.failed_arm})"
            reason = f"{outcome.reason or outcome.status}{arm}"
            return msgspec.structs.replace(
                trial, status=outcome.status, verdict="inconclusive", reason=reason
            )
        process = 1 + max((pair.process for pair in trial.pairs), default=-1)
        new = (msgspec.structs.replace(pair, process=process) for pair in outcome.pairs)
        pairs = (*trial.pairs, *new)
        ratio = ratio_interval(pairs)
        verdict = judge_time(ratio, threshold=LEAST_GAIN)
        return msgspec.structs.replace(
            trial,
            pairs=pairs,
            time_ratio=ratio,
            verdict=verdict,
            reason="; ".join((_said(verdict, len(pairs), process + 1), *outcome.doubts)),
            base_peak_bytes=_larger(trial.base_peak_bytes, outcome.base_peak_bytes),
            candidate_peak_bytes=_larger(trial.candidate_peak_bytes, outcome.candidate_peak_bytes),
        )


def _larger(a: int | None, b: int | None) -> int | None:
    known = [each for each in (a, b) if each is not None]
    return max(known, default=None)


def _said(verdict: str, n_pairs: int, n_processes: int) -> str:
    shown = {
        "kept": "faster in the interval",
        "rejected": f"a gain of {LEAST_GAIN:.0%} is outside the interval",
        "inconclusive": f"the interval holds both a gain of {LEAST_GAIN:.0%} and less",
    }
    return f"{shown[verdict]} ({n_pairs} pairs, {n_processes} processes)"


def _screened(
    lever: Lever, base: Measurement, candidate: Measurement, key: str, wall_s: float
) -> Trial:
    """What one short measurement of each arm says: enough to drop a lever, not to keep one."""
    ours, theirs = base.case, candidate.case
    assert isinstance(ours, ModelCase)
    assert isinstance(theirs, ModelCase)
    peaks = [
        each.memory.peak_allocated_bytes if each.memory else None for each in (base, candidate)
    ]
    trial = msgspec.structs.replace(
        _trial(lever.name, ours, theirs, key, stage="screened"),
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
    ratio = _apart(base.summary.median_s, candidate.summary.median_s)
    steady = all(each.validity and each.validity.verdict == "stable" for each in (base, candidate))
    lost = steady and judge_time(ratio, threshold=LEAST_GAIN) == "rejected"
    verdict = "rejected" if lost else "inconclusive"
    return msgspec.structs.replace(
        trial,
        pairs=(
            Pair(
                process=0,
                base_s=base.summary.median_s.estimate,
                candidate_s=candidate.summary.median_s.estimate,
            ),
        ),
        time_ratio=ratio,
        verdict=verdict,
        reason=_screening(ratio, verdict),
    )


def interrupted(trial: Trial) -> bool:
    """Whether Ctrl-C ended an arm of it: it says nothing about the lever."""
    return trial.reason.startswith("interrupted")


def rescues(trial: Trial) -> bool:
    """Whether the candidate was seen to run where the base does not fit."""
    return trial.stage == "screened" and trial.status == "ok" and not trial.pairs


def _failed(trial: Trial, arm: Measurement, verdict: TrialVerdict) -> Trial:
    """The trial with one arm's failure; one that Ctrl-C ended is no verdict on the lever."""
    reason = arm.reason or arm.status
    stopped = reason.startswith("interrupted")
    return msgspec.structs.replace(
        trial,
        status=arm.status,
        verdict="inconclusive" if stopped else verdict,
        reason=reason,
    )


def promising(trial: Trial) -> bool:
    """Whether a screening saw a gain that is worth confirming."""
    ratio = trial.time_ratio
    return (
        trial.verdict == "inconclusive" and ratio is not None and ratio.estimate <= 1 - LEAST_GAIN
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


def _screening(ratio: Interval, verdict: str) -> str:
    if verdict == "rejected":
        return f"a gain of {LEAST_GAIN:.0%} is outside the interval"
    if ratio.estimate <= 1 - LEAST_GAIN:
        return "faster when screened; not confirmed"
    return f"no gain of {LEAST_GAIN:.0%} when screened; the interval does not rule one out"


def _trial(
    name: str,
    base: ModelCase,
    candidate: ModelCase,
    key: str,
    *,
    stage: str,
    verdict: str = "inconclusive",
    reason: str = "",
    numerics: NumericsVerdict | None = None,
) -> Trial:
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
    )
