"""What else could be had: configurations that no other beats in time, memory, energy and numerics."""

from typing import NamedTuple

from peakward.records.case import LeverCase, same_work
from peakward.records.lever import NumericsClass
from peakward.records.study import Column, Study, Table
from peakward.records.trial import Trial
from peakward.report.cases import settings
from peakward.report.columns import without_empty
from peakward.report.document import Section, TableBlock
from peakward.report.run.investigation import Investigation

STRICTEST_FIRST: tuple[NumericsClass, ...] = ("exact", "reordered", "approximate")
NEAR = 0.01
"""Less of a difference in time or energy is none: screenings repeat to about that."""


class Seen(NamedTuple):
    """A configuration that was timed."""

    case: LeverCase
    step_s: float
    peak_bytes: int
    step_j: float | None
    numerics: NumericsClass
    """The weakest of the levers that lead to it from the baseline."""
    confirmed: bool


def section(study: Study, read: Investigation) -> Section:
    """Empty where fewer than two are left: there is nothing to choose."""
    found = front(seen(study.trials, read.baseline.case))
    if len(found) < 2:
        return Section(title="What else could be had", blocks=())
    return Section(
        title="What else could be had",
        blocks=(TableBlock(table=without_empty(_table(found, read))),),
    )


def seen(trials: tuple[Trial, ...], baseline: LeverCase) -> tuple[Seen, ...]:
    """Each configuration once, by the furthest trial of it; those whose numbers do not hold are none.

    Walked in the order of the trials: a base was a candidate of one before, or is the baseline.
    """
    numerics: dict[LeverCase, NumericsClass] = {baseline: "exact"}
    found: dict[LeverCase, Seen] = {}
    for trial in sorted(trials, key=lambda each: each.stage == "confirmed"):
        if not trial.pairs or not same_work(trial.candidate, baseline):
            continue
        if trial.numerics is not None and trial.numerics.verdict != "holds":
            found.pop(trial.candidate, None)
            continue
        kind = trial.numerics.declared if trial.numerics is not None else "approximate"
        for case, of_candidate in ((trial.base, False), (trial.candidate, True)):
            weakest = numerics.get(case) or _weaker(numerics.get(trial.base, "approximate"), kind)
            one = _seen(trial, case, weakest, of_candidate=of_candidate)
            if one is not None and not (case in found and found[case].confirmed > one.confirmed):
                numerics[case], found[case] = weakest, one
    return tuple(found.values())


def front(found: tuple[Seen, ...]) -> tuple[Seen, ...]:
    """Those that no other beats in one respect without being worse in another; the fastest first."""
    kept = [one for one in found if not any(_beats(other, one) for other in found)]
    return tuple(sorted(kept, key=lambda each: each.step_s))


def _seen(trial: Trial, case: LeverCase, kind: NumericsClass, *, of_candidate: bool) -> Seen | None:
    peak = trial.candidate_peak_bytes if of_candidate else trial.base_peak_bytes
    if peak is None:
        return None
    times = sorted(pair.candidate_s if of_candidate else pair.base_s for pair in trial.pairs)
    joules = [pair.candidate_j if of_candidate else pair.base_j for pair in trial.pairs]
    counted = sorted(each for each in joules if each is not None)
    return Seen(
        case=case,
        step_s=times[len(times) // 2],
        peak_bytes=peak,
        step_j=counted[len(counted) // 2] if len(counted) == len(times) else None,
        numerics=kind,
        confirmed=trial.stage == "confirmed",
    )


def _weaker(one: NumericsClass, other: NumericsClass) -> NumericsClass:
    return max(one, other, key=STRICTEST_FIRST.index)


def _beats(other: Seen, one: Seen) -> bool:
    """As good in all, and better in one."""
    if other is one or STRICTEST_FIRST.index(other.numerics) > STRICTEST_FIRST.index(one.numerics):
        return False
    ratios = [other.step_s / one.step_s, other.peak_bytes / one.peak_bytes]
    if other.step_j is not None and one.step_j is not None:
        ratios.append(other.step_j / one.step_j)
    if max(ratios) > 1 + NEAR:
        return False
    stricter = STRICTEST_FIRST.index(other.numerics) < STRICTEST_FIRST.index(one.numerics)
    return min(ratios) < 1 - NEAR or stricter


def _table(found: tuple[Seen, ...], read: Investigation) -> Table:
    common = settings(read.baseline.case)
    return Table(
        title="",
        columns=(
            Column(name="configuration"),
            Column(name="step", unit="s"),
            Column(name="peak memory", unit="bytes"),
            Column(name="energy a step", unit="j"),
            Column(name="numerics"),
            Column(name="known by"),
        ),
        rows=tuple(
            (
                " + ".join(each for each in settings(one.case) if each not in common) or "baseline",
                one.step_s,
                one.peak_bytes,
                one.step_j,
                one.numerics,
                "pairs" if one.confirmed else "a screening",
            )
            for one in found
        ),
        note=f"Of all that was tried, what no other beats in {_respects(found)} at once; differences under "
        f"{NEAR:.0%} count as none. Numerics: the weakest class of the levers on the way from the "
        "baseline, approximate where it was not checked.",
    )


def _respects(found: tuple[Seen, ...]) -> str:
    """Energy is compared where it was counted alone."""
    counted = any(each.step_j is not None for each in found)
    return f"time, peak memory{', energy' if counted else ''} and numerics"
