"""Findings as report blocks: ranked, each with its evidence, cause and levers."""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType

from peakward.records.finding import Diagnosis, Finding, LeverGain
from peakward.records.lever import Trial
from peakward.records.measurement import Interval
from peakward.records.study import Cell, Column, Table
from peakward.report.columns import without_empty
from peakward.report.document import Block, Document, Items, Note, Paragraph, TableBlock
from peakward.report.format import format_cell, format_spread
from peakward.stats.pairs import inverted

OF = {
    "measured step": "the measured step; idle time is its part without kernels",
    "watched step": "the loop's mean unprofiled step",
    "profiled step": "a profiled step, whose idle time the profiler lengthens",
    "profiled work": "the step's work under the profiler, which takes longer than the step without it",
    "profiled span": "the recorded span, whose idle time the profiler lengthens",
}
"""The whole that shares of time refer to, by `Diagnosis.basis`."""
UNDER_PROFILER = ("profiled step", "profiled work", "profiled span")
"""The bases whose times a profiler lengthens, so that they may exceed the measured step."""
NONE: Mapping[str, str] = MappingProxyType({})
PREDICTED = (
    "Through this: the predicted speed-up, limited to the finding's own time. Whole step: the "
    "predicted speed-up with the lever's other effects."
)
MEASURED = (
    "Measured: in pairs on this very case. A screened value compares two short measurements, "
    "so it includes the machine's drift."
)
ORDER = (
    " The order is by time. Findings that lose nothing come last, then time that nothing above "
    "explains."
)


N_FIRST = 3
"""The number of findings on the first screen: those that add most, with cause and remedy."""


def first(
    found: Diagnosis,
    name: str,
    pulled: Container[str] = (),
    rejected: Mapping[str, str] = NONE,
) -> tuple[Block, ...]:
    """The findings that add most to the time or memory of `name`, in sentences; empty without a diagnosis.
    Levers in `pulled` are marked as already in the best; `rejected` is as in `blocks`."""
    if not found.findings:
        return ()
    shown = found.findings[:N_FIRST]
    n_more = len(found.findings) - len(shown)
    # A trace has no other times; those of a case stand beside its measured step.
    longer = found.case is not None and found.basis in UNDER_PROFILER
    asides = (
        *(("times under the profiler",) if longer else ()),
        *((f"{n_more} more below",) if n_more else ()),
    )
    aside = f" ({'; '.join(asides)})" if asides else ""
    return (
        Paragraph(text=f"What holds {name} back{aside}:"),
        Items(texts=tuple(_with_share(each, pulled, rejected) for each in shown)),
    )


def _with_share(found: Finding, pulled: Container[str], rejected: Mapping[str, str]) -> str:
    lost = None if found.held_back_s is None else format_cell(found.held_back_s, "s")
    if lost is None and found.held_back_bytes is not None:
        lost = format_cell(found.held_back_bytes, "bytes")
    share = None if found.share is None else format_cell(found.share, "share")
    size = ", ".join(each for each in (lost, share) if each is not None)
    head = f"{found.title} ({size})" if size else found.title
    return f"{found.code} {head}. {found.cause}{_remedy(found, pulled, rejected)}"


def _remedy(found: Finding, pulled: Container[str], rejected: Mapping[str, str]) -> str:
    """The advice with its levers, then those that a trial has rejected. Where it rejected all, there is no
    advice left."""
    left = [each.lever for each in found.gains if each.lever not in rejected]
    tried = [each.lever for each in found.gains if each.lever in rejected]
    names = ", ".join(f"{name} (in the best)" if name in pulled else name for name in left)
    told = ", ".join(f"{name} ({rejected[name]})" for name in tried)
    return "".join(
        (
            f" To do: {found.advice}." if left or not tried else "",
            f" Levers: {names}." if names else "",
            f" Tried and rejected: {told}." if told else "",
        )
    )


def brief(found: Diagnosis) -> tuple[Block, ...]:
    """The ranking, and the rules that could not judge."""
    return (*_ranking(found), *missing(found))


def document(found: Diagnosis) -> Document:
    """The report of a diagnosis alone."""
    n = len(found.findings)
    return Document(
        title=found.subject,
        headline=f"{n} finding{'' if n == 1 else 's'}",
        blocks=(*blocks(found), *missing(found)),
    )


def blocks(
    found: Diagnosis, trials: Sequence[Trial] = (), rejected: Mapping[str, str] = NONE
) -> tuple[Block, ...]:
    """All tables of the diagnosis. A trial of a lever on this very case stands beside its prediction.
    `rejected` are levers that no finding recommends, each with the result of its trial."""
    levers = without_empty(lever_table(found, trials))
    seen = evidence(found)
    sentences = tuple(told(each, rejected) for each in found.findings)
    return (
        *_ranking(found),
        *((Items(texts=sentences),) if sentences else ()),
        *((TableBlock(table=levers),) if levers.rows else ()),
        *((TableBlock(table=seen),) if seen.rows else ()),
        *(Note(text=text) for text in _not_computed(found)),
    )


def _ranking(found: Diagnosis) -> tuple[Block, ...]:
    if not found.findings:
        n = len(found.clean)
        text = f"The {n} rule{'' if n == 1 else 's'} that could judge found nothing."
        return (Paragraph(text=text),)
    return (TableBlock(table=without_empty(ranking(found))),)


def ranking(found: Diagnosis) -> Table:
    """One row for each finding, in rank order."""
    of = "" if found.basis is None else f"Shares of time refer to {OF[found.basis]}. "
    order = ORDER if len(found.findings) > 1 else ""
    return Table(
        title="Findings, ranked",
        columns=(
            Column(name="code"),
            Column(name="finding", unit="name"),
            Column(name="time", unit="s"),
            Column(name="memory", unit="bytes"),
            Column(name="share", unit="share"),
            Column(name="added", unit="s"),
            Column(name="max speed-up", unit="ratio"),
        ),
        rows=tuple(
            (
                each.code,
                each.title,
                each.held_back_s,
                each.held_back_bytes,
                each.share,
                each.beyond_s,
                each.bound,
            )
            for each in found.findings
        ),
        note=f"{of}Added: the time that no finding above covers. Max speed-up: if that time were 0 "
        f"(Amdahl).{order}",
    )


def told(found: Finding, rejected: Mapping[str, str] = NONE) -> str:
    """A finding in sentences: cause, advice, levers."""
    return f"{found.code}: {found.cause}{_remedy(found, (), rejected)}"


def evidence(found: Diagnosis) -> Table:
    """The evidence of each finding, with its path among the stored numbers."""
    return Table(
        title="Evidence of the findings",
        columns=(
            Column(name="code"),
            Column(name="seen", unit="name"),
            Column(name="value"),
            Column(name="stored as", unit="name"),
        ),
        rows=tuple(
            (finding.code, each.name, format_cell(each.value, each.unit), each.stored)
            for finding in found.findings
            for each in finding.evidence
        ),
    )


def lever_table(found: Diagnosis, trials: Sequence[Trial]) -> Table:
    """Levers with their predicted gains, and the result of a trial on this case."""
    rows = [
        _row(finding, each, trials, found)
        for finding in found.findings
        for each in finding.gains
        if each.predicted or each.saved_bytes is not None or _trial(each, trials, found)
    ]
    return Table(
        title="Levers for these findings",
        columns=(
            Column(name="code"),
            Column(name="lever"),
            Column(name="through this"),
            Column(name="whole step"),
            Column(name="measured"),
            Column(name="memory saved", unit="bytes"),
        ),
        rows=tuple(rows),
        note=_how_known(rows),
    )


def _how_known(rows: Sequence[tuple[Cell, ...]]) -> str:
    """A note on the columns that at least one row fills."""
    predicted = any(row[2] or row[3] for row in rows)
    measured = any(row[4] for row in rows)
    levels = ("of predictions 90%",) * predicted + ("of measurements 95%",) * measured
    intervals = f"Speed-ups with their intervals, {', '.join(levels)}." if levels else ""
    return " ".join(filter(None, (intervals, PREDICTED * predicted, MEASURED * measured)))


def _row(
    finding: Finding, each: LeverGain, trials: Sequence[Trial], found: Diagnosis
) -> tuple[Cell, ...]:
    tried = _trial(each, trials, found)
    return (
        finding.code,
        each.lever,
        _spread(each.gain),
        _spread(each.predicted),
        None if tried is None else _measured(tried),
        each.saved_bytes,
    )


def _spread(interval: Interval | None) -> str | None:
    return None if interval is None else format_spread(interval, "ratio")


def _measured(trial: Trial) -> str | None:
    """The trial's speed-up, marked where it was not confirmed in pairs. Two short measurements minutes apart
    once gave 2.39× where 1.11× was the maximum possible."""
    if trial.time_ratio is None:
        return None
    seen = format_spread(inverted(trial.time_ratio), "ratio")
    return seen if trial.stage == "confirmed" else f"{seen} screened"


def _trial(each: LeverGain, trials: Sequence[Trial], found: Diagnosis) -> Trial | None:
    """The trial of this lever on this very case; a confirmed one before a screened one."""
    made = [
        trial
        for trial in trials
        if trial.lever == each.lever and trial.base == found.case and trial.time_ratio is not None
    ]
    return max(made, key=lambda trial: trial.stage == "confirmed", default=None)


def _not_computed(found: Diagnosis) -> tuple[str, ...]:
    by_reason: dict[str, dict[str, None]] = {}
    for finding in found.findings:
        for each in finding.gains:
            if each.predicted is None and each.source.startswith("not computed"):
                by_reason.setdefault(each.source, {})[each.lever] = None
    return tuple(
        f"Gain of {', '.join(names)} {reason.rstrip('.')}." for reason, names in by_reason.items()
    )


def missing(found: Diagnosis) -> tuple[Block, ...]:
    """A note that groups the missing inputs, so that the reader knows what to record next time."""
    text = unjudged({"": found})
    return () if text is None else (Note(text=text),)


def unjudged(diagnoses: Mapping[str, Diagnosis]) -> str | None:
    """How many rules could not judge each named case, and what was missing. A rule that judged some of the
    cases is told with the others' names. None where every rule judged."""
    by_input: dict[str, dict[str, list[str]]] = {}
    for name, found in diagnoses.items():
        for each in found.abstentions:
            for input_ in each.missing:
                by_input.setdefault(input_, {}).setdefault(each.code, []).append(name)
    if not by_input:
        return None
    counts = [f"{_rules(found)} could not judge {name}" for name, found in diagnoses.items()]
    said = "; ".join(
        f"{input_} ({', '.join(_code(code, names, diagnoses) for code, names in codes.items())})"
        for input_, codes in by_input.items()
    )
    return f"{', '.join(counts).rstrip()}. Missing: {said}."


def _rules(found: Diagnosis) -> str:
    n = len(found.abstentions)
    return f"{n} rule{'' if n == 1 else 's'}"


def _code(code: str, names: Sequence[str], diagnoses: Mapping[str, Diagnosis]) -> str:
    return code if len(names) == len(diagnoses) else f"{code} for {' and '.join(names)}"
