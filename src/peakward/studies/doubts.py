"""Which times are not to be believed without a second look, said where they are used."""

from collections.abc import Iterable

import msgspec

from peakward.records.case import (
    CollectivesCase,
    ModelCase,
    NumericsCase,
    QualityCase,
    SpeculationCase,
)
from peakward.records.measurement import Measurement
from peakward.records.profile import CaseProfile
from peakward.records.study import Conclusion, Evidence, Unit
from peakward.report.cases import label

TIMES: tuple[Unit, ...] = ("s", "ratio", "tokens_per_s", "flops_per_s")
PROFILED: tuple[Unit, ...] = (*TIMES, "share")
"""A share that is read off a profile is one of time."""
MOST_NAMED = 8
"""Doubtful measurements named with their reasons; the tables mark all."""
FEWEST_STEPS = 5
"""A measurement planned with fewer asks whether a case runs, not for how long."""


def marked(
    conclusions: Iterable[Conclusion],
    measurements: Iterable[Measurement],
    profiles: Iterable[CaseProfile] = (),
) -> tuple[Conclusion, ...]:
    """The conclusions, each that rests on doubtful times saying on how many.

    A few profiled steps cannot show whether they are steady, so what is read off a profile, shares of
    its time included, is as doubtful as the case's measurement.
    """
    by_id = {each.id: each for each in measurements}
    by_case = {each.case: each for each in by_id.values()}
    behind = {each.id: by_case[each.case] for each in profiles if each.case in by_case}
    return tuple(_marked(each, by_id, behind) for each in conclusions)


def notes(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """How many times are unstable or throttled, and the first of them with their reasons."""
    timed = [each for each in measurements if _is_timed(each)]
    doubtful = [each for each in timed if _is_doubtful(each)]
    if not doubtful:
        return ()
    named = [
        f"{label(each.case)}: {'; '.join(each.validity.reasons)}"
        for each in doubtful[:MOST_NAMED]
        if each.validity
    ]
    more = f", of which {len(named)} follow" if len(doubtful) > len(named) else ""
    are = "is" if len(doubtful) == 1 else "are"
    return (f"{len(doubtful)} of {len(timed)} times {are} unstable or throttled{more}.", *named)


def _marked(
    conclusion: Conclusion, by_id: dict[str, Measurement], profiled: dict[str, Measurement]
) -> Conclusion:
    sources = [
        (by_id if each.unit in TIMES else {}) | (profiled if each.unit in PROFILED else {})
        for each in conclusion.evidence
    ]
    found = {
        known[name].id: known[name]
        for each, known in zip(conclusion.evidence, sources, strict=True)
        for name in each.from_ids
        if name in known
    }
    behind = [found[name] for name in sorted(found)]
    timed = [each for each in behind if _is_timed(each)]
    doubtful = [each for each in timed if _is_doubtful(each)]
    if not doubtful:
        return conclusion
    return msgspec.structs.replace(
        conclusion,
        text=f"{conclusion.text} ({_shared(len(doubtful), len(timed))} unstable or throttled.)",
        evidence=(
            *conclusion.evidence,
            _count("doubtful times", doubtful),
            _count("times", timed),
        ),
    )


def _shared(n_doubtful: int, n_timed: int) -> str:
    if n_timed == 1:
        return "The time behind it is"
    if n_doubtful == n_timed:
        which = "Both" if n_timed == 2 else f"All {n_timed}"
        return f"{which} times behind it are"
    return f"{n_doubtful} of the {n_timed} times behind it {'is' if n_doubtful == 1 else 'are'}"


def _count(quantity: str, measurements: list[Measurement]) -> Evidence:
    return Evidence(
        quantity=quantity,
        value=len(measurements),
        unit="count",
        from_ids=tuple(each.id for each in measurements),
    )


def _is_timed(measurement: Measurement) -> bool:
    """Whether its times are meant to be steady: a cold start, changing lengths, steps that wait for a
    loader and those that read a text are not."""
    case, protocol = measurement.case, measurement.protocol
    changing = isinstance(case, NumericsCase | QualityCase | SpeculationCase | CollectivesCase) or (
        isinstance(case, ModelCase)
        and (
            (case.workload.varying_seq_lens and case.workload.padding == "none")
            or case.workload.data is not None
        )
    )
    steady = protocol.warmup_steps != 0 and not changing
    return measurement.status == "ok" and protocol.max_steps >= FEWEST_STEPS and steady


def _is_doubtful(measurement: Measurement) -> bool:
    validity = measurement.validity
    return validity is not None and validity.verdict != "stable"
