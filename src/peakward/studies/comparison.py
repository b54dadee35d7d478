"""Two studies, taken case by case, to a study of their ratios. Pure."""

import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from statistics import quantiles
from typing import Literal, get_args

import msgspec

from peakward.records.case import Case, StepCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment, Interval, Measurement, Summary
from peakward.records.study import Cell, Column, Conclusion, Evidence, Study, Table
from peakward.report.cases import label
from peakward.report.format import format_cell
from peakward.stats.pairs import judge_change, median_ratio

Verdict = Literal[
    "broken", "missing", "slower", "not measured", "inconclusive", "same", "faster", "mended"
]
"""The worst first."""

MIN_STEPS = 5
"""Fewer timed steps on a side give an interval too rough to judge by."""

_Plan = tuple[Case, int | None, bool]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one case: its measurements in both studies, their ratio and a verdict."""

    before: Measurement
    after: Measurement | None
    """None: the study after does not hold it."""
    ratio: Interval | None
    verdict: Verdict
    reason: str | None = None


def differences(before: Environment, after: Environment) -> tuple[str, ...]:
    """Returns the fields that keep two environments' figures apart, each as "torch: 2.11.0, then 2.13.0"."""
    if before.key == after.key:
        return ()
    pairs = (
        (field, getattr(before, field), getattr(after, field))
        for field in Environment.__struct_fields__
        if field not in ("device_uuid", "peakward")
    )
    return tuple(f"{field}: {old}, then {new}" for field, old, new in pairs if old != new)


def refuse_to_mix(before: Study, after: Study, *, across: bool) -> None:
    """Refuse two environments unless asked to compare across them.

    Raises:
        PeakwardError: naming each difference.
    """
    apart = differences(before.environment, after.environment)
    if apart and not across:
        raise PeakwardError(
            f"expected studies of one environment, got {'; '.join(apart)}: "
            "compare them all the same with --across"
        )


def changes(before: Study, after: Study, *, threshold: float) -> tuple[Change, ...]:
    """Every case that both studies hold, measured with the same warm-up, judged; and every one that
    ran before and that the study after lacks. The worst come first.

    The best composition of a `run` is its finding, not its plan: another one is no missing case.
    """
    planned = before.name != "run"
    old, new = _by_plan(before.measurements), _by_plan(after.measurements)
    found = (
        change(measured, new[plan], threshold) if plan in new else _missing(measured, after)
        for plan, measured in old.items()
        if plan in new or (planned and measured.status == "ok")
    )
    return tuple(sorted(found, key=_severity))


def _severity(change: Change) -> tuple[int, float]:
    """Smallest for what is worst: by the verdict, then by how much slower."""
    slowed = 0.0 if change.ratio is None else change.ratio.estimate
    return get_args(Verdict).index(change.verdict), -slowed


def regressions(found: Iterable[Change]) -> tuple[Change, ...]:
    """Those that a gate should stop: surely slower, no longer running, or not even tried."""
    return tuple(each for each in found if each.verdict in ("slower", "broken", "missing"))


def study(
    before: Study, after: Study, found: tuple[Change, ...], *, threshold: float, command: str
) -> Study:
    """The `changes` of two studies as a study of its own.

    Raises:
        PeakwardError: no case was measured in both.
    """
    if all(each.after is None for each in found):
        raise PeakwardError(
            "expected a case that both studies measured, got none: "
            "run the same grid twice, with `--db` before and after"
        )
    return Study(
        id=uuid.uuid4().hex,
        name="compare",
        title=f"{after.title}: {before.id[:8]} against {after.id[:8]}",
        command=command,
        environment=after.environment,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_s=0.0,
        complete=True,
        measurements=tuple(each for change in found for each in _sides(change)),
        tables=(_table(before.environment, after.environment, found),),
        conclusions=(_conclusion(found),),
        notes=_notes(before, after, found, threshold),
    )


def _by_plan(measurements: Iterable[Measurement]) -> dict[_Plan, Measurement]:
    return {
        (_known_as(each.case), each.protocol.warmup_steps, each.protocol.fresh_process): each
        for each in measurements
    }


def _known_as(case: Case) -> Case:
    """A live step goes by its name: that its code changed is why the two are compared."""
    return msgspec.structs.replace(case, fingerprint="") if isinstance(case, StepCase) else case


def change(before: Measurement, after: Measurement, threshold: float) -> Change:
    """Judges the change of a case that was measured before and after.

    Raises:
        PeakwardError: medians that have no ratio.
    """
    ran = before.status == "ok", after.status == "ok"
    if ran != (True, True):
        verdict: Verdict = {
            (True, False): "broken",
            (False, True): "mended",
            (False, False): "not measured",
        }[ran]  # type: ignore[assignment]
        reason = f"{before.status}, then {after.status}"
        return Change(before=before, after=after, ratio=None, verdict=verdict, reason=reason)
    if before.summary is None or after.summary is None:
        return Change(before=before, after=after, ratio=None, verdict="not measured")
    ratio = _ratio(before, _known(before, before.summary), _known(after, after.summary))
    doubt = _doubt(before) or _doubt(after)
    return Change(
        before=before,
        after=after,
        ratio=ratio,
        verdict="inconclusive" if doubt else judge_change(ratio, threshold=threshold),
        reason=doubt,
    )


def _ratio(measured: Measurement, before: Interval, after: Interval) -> Interval:
    """After / before; a file that was edited may hold medians that have none."""
    try:
        return median_ratio(before, after)
    except (ValueError, ZeroDivisionError) as error:
        raise PeakwardError(
            f"expected step times of {label(measured.case)} that can be compared, got a study in which "
            f"they cannot: {error}"
        ) from error


def _known(measurement: Measurement, summary: Summary) -> Interval:
    """The median, as well as it is known. A bootstrap takes steps for draws from one level; where they
    drift, or come in two modes, the next run's median may be any that this one saw."""
    median_s, validity = summary.median_s, measurement.validity
    steps_s = [each for run in measurement.runs for each in run.steps_s]
    if validity is None or validity.verdict != "unstable" or len(steps_s) < MIN_STEPS:
        return median_s
    cuts = quantiles(steps_s, n=20, method="inclusive")
    return msgspec.structs.replace(
        median_s, low=min(median_s.low, cuts[0]), high=max(median_s.high, cuts[-1])
    )


def _missing(before: Measurement, after: Study) -> Change:
    """A gate that let it pass could be passed by measuring less."""
    why = "not in the study after" + ("" if after.complete else ", which is incomplete")
    return Change(before=before, after=None, ratio=None, verdict="missing", reason=why)


def _sides(change: Change) -> tuple[Measurement, ...]:
    return (change.before,) if change.after is None else (change.before, change.after)


def _doubt(measurement: Measurement) -> str | None:
    """Why a measurement cannot carry a verdict."""
    if measurement.summary is not None and measurement.summary.n < MIN_STEPS:
        return f"{measurement.summary.n} timed steps, {MIN_STEPS} needed"
    if measurement.validity is not None and measurement.validity.verdict == "throttled":
        return "throttled: " + "; ".join(measurement.validity.reasons)
    return None


def _table(before: Environment, after: Environment, found: tuple[Change, ...]) -> Table:
    """One device a column where the two differ: each heading then names its own."""
    apart = before.device_name != after.device_name
    columns = (
        Column(name="case", unit="name"),
        Column(name=f"before, {before.device_name}" if apart else "before", unit="s"),
        Column(name=f"after, {after.device_name}" if apart else "after", unit="s"),
        Column(name="after / before", unit="ratio"),
        Column(name="95% from", unit="ratio"),
        Column(name="to", unit="ratio"),
        Column(name="memory", unit="ratio"),
        Column(name="verdict"),
        Column(name="reason"),
    )
    return Table(title="Step times", columns=columns, rows=tuple(map(_row, found)))


def _row(change: Change) -> tuple[Cell, ...]:
    ratio = change.ratio
    return (
        _name(change.before),
        _median(change.before),
        _median(change.after),
        None if ratio is None else ratio.estimate,
        None if ratio is None else ratio.low,
        None if ratio is None else ratio.high,
        _memory_ratio(change),
        change.verdict,
        change.reason,
    )


def _name(measurement: Measurement) -> str:
    warmup = measurement.protocol.warmup_steps
    suffix = "" if warmup is None else f", {warmup} warm-up steps"
    return label(measurement.case) + suffix


def _median(measurement: Measurement | None) -> float | None:
    if measurement is None or measurement.summary is None:
        return None
    return measurement.summary.median_s.estimate


def _memory_ratio(change: Change) -> float | None:
    before = change.before.memory
    after = None if change.after is None else change.after.memory
    if before is None or after is None or not before.peak_allocated_bytes:
        return None
    return after.peak_allocated_bytes / before.peak_allocated_bytes


def verdict(found: tuple[Change, ...]) -> str:
    """The line that a reader of a pull request needs first."""
    n = len(regressions(found))
    if not n:
        return "No regression"
    return f"{n} regression{'' if n == 1 else 's'}"


def _conclusion(found: tuple[Change, ...]) -> Conclusion:
    counts = Counter(each.verdict for each in found)
    said = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
    ids = tuple(_sides(each)[-1].id for each in found)
    evidence = [Evidence(quantity="cases", value=len(found), unit="count", from_ids=ids)]
    for verdict, n in sorted(counts.items()):
        of = tuple(_sides(each)[-1].id for each in found if each.verdict == verdict)
        evidence.append(Evidence(quantity=verdict, value=n, unit="count", from_ids=of))
    return Conclusion(text=f"{_cases(len(found))} compared: {said}.", evidence=tuple(evidence))


def _notes(
    before: Study, after: Study, found: tuple[Change, ...], threshold: float
) -> tuple[str, ...]:
    share = format_cell(threshold, "share")
    notes = [
        f"Slower or faster: the whole 95% interval of the ratio lies beyond {share}; same: within it. "
        "The interval is that of two medians, each taken in its own run, so it does not know what "
        "varies between runs. A time that is unstable counts as anything from the 5th to the 95th "
        "percentile of its steps.",
    ]
    apart = differences(before.environment, after.environment)
    notes += [f"The environments differ: {'; '.join(apart)}."] if apart else []
    compared = sum(each.after is not None for each in found)
    missing = len(found) - compared
    if missing:
        notes.append(
            f"Missing in the study after, and counted as regressions: {_cases(missing)} that ran before."
        )
    for name, one, counted in (("before", before, len(found)), ("after", after, compared)):
        notes += [] if one.complete else [f"The study {name} is incomplete."]
        alone = len(_by_plan(one.measurements)) - counted
        notes += [f"Only in the study {name}, and left out: {_cases(alone)}."] if alone else []
    return tuple(notes)


def _cases(n: int) -> str:
    return f"{n} case{'' if n == 1 else 's'}"
