"""Warnings about a run's figures: the cause, then the remedy."""

import shlex

from peakward.records.measurement import Validity
from peakward.records.study import Study, Unfinished
from peakward.report.cases import brief
from peakward.report.format import format_cell, format_duration, format_interval
from peakward.report.run import levers
from peakward.report.run.investigation import KnownConfiguration, RunParts
from peakward.stats.validity import remedies

_OUTPUTS_REMEDY = (
    "look at the weights and the input, and for dropout or other random operators that run in "
    "evaluation; the times are valid, comparisons of the numbers are not"
)
N_NAMED = 6
"""The most levers that a sentence names; beyond it the sentence gives their number."""
BUDGETS_S = (60, 90, 120, 180, 240, 300, 480, 600, 900, 1200, 1800, 2700, 3600, 5400, 7200)
MORE = 1.5
"""The factor on the predicted remaining time, because that prediction was too short once already."""


def warnings(study: Study, found: RunParts) -> tuple[str, ...]:
    """The warnings, one or two sentences each, the gravest first."""
    return (
        *_failed(found),
        *_strange(found),
        *levers.impossible(study),
        *_drifted(found),
        *_doubtful(found),
        *_ended_early(study),
    )


def _failed(found: RunParts) -> list[str]:
    return [
        f"The {point.name} gave no time: {made.told}{f': {brief(made.reason)}' if made.reason else ''}."
        for point in found.points
        if (made := point.measurement) is not None and made.status != "ok"
    ]


def _strange(found: RunParts) -> list[str]:
    """Warnings about the outputs of the configurations."""
    return [
        f"The {point.name}: {'; '.join(outputs.troubles)}. To do: {_OUTPUTS_REMEDY}."
        for point in found.points
        if (made := point.measurement) is not None
        and (outputs := made.outputs) is not None
        and outputs.troubles
    ]


def _drifted(found: RunParts) -> list[str]:
    """Says that the two times at the head of the report give another ratio than the pairs do."""
    pairs = found.speedup.interval if found.speedup is not None else None
    if found.alone is None or pairs is None:
        return []
    said = (
        f"Measured alone, minutes apart, the two medians give {format_cell(found.alone, 'ratio')}"
    )
    spread = f"the interval of the pairs ({format_interval(pairs, 'ratio')})"
    if pairs.low <= found.alone <= pairs.high:
        return [f"{said}, within {spread}. Trust the pairs."]
    return [f"{said}, outside {spread}: this machine's speed drifted. Trust the pairs."]


def _doubtful(found: RunParts) -> list[str]:
    """The configurations whose times are not stable. Those with the same reasons share a sentence."""
    return [
        told(point.name, validity)
        for point in found.points
        if (validity := _validity(point)) is not None and validity.verdict != "stable"
    ]


def _validity(point: KnownConfiguration) -> Validity | None:
    return None if point.measurement is None else point.measurement.validity


def told(name: str, validity: Validity) -> str:
    """Cause and remedy: "The baseline's times are unstable: other programs used 71% of the CPU while timing
    (limit 5%). To do: stop the other programs, …"."""
    cause = f"The {name}'s times are {validity.verdict}: {'; '.join(validity.reasons)}."
    todo = "; ".join(remedies(validity.reasons))
    return f"{cause} To do: {todo}." if todo else cause


def _ended_early(study: Study) -> tuple[str, ...]:
    if study.interrupted:
        return (
            "Ctrl-C ended the run. The results here are valid, and the same command continues "
            "from them.",
        )
    if study.unfinished is not None:
        return (_short(study.unfinished, study.command),)
    if study.complete:
        return ()
    return (
        "The budget ended before the run was complete. The results here are valid, and the notes "
        "list what was not done.",
    )


def _short(left: Unfinished, command: str) -> str:
    """How much the budget was too short, and how to continue."""
    what = _left(left)
    return (
        f"The budget of {format_duration(left.budget_s)} was too short {what}. What is left takes "
        f"about {format_duration(left.short_s)}. Continue: {_continuation(left, command)}"
    )


def _left(left: Unfinished) -> str:
    parts = []
    if left.levers:
        parts.append(f"to try all levers ({_named(left.levers)} left)")
    if left.unconfirmed:
        parts.append(f"to confirm all gains ({_named(left.unconfirmed)} left)")
    return " and ".join(parts) or "for the whole run (the notes list what was not done)"


def _named(names: tuple[str, ...]) -> str:
    return str(len(names)) if len(names) > N_NAMED else ", ".join(names)


def _continuation(left: Unfinished, command: str) -> str:
    """The same command with a larger budget. It takes stored measurements from its database."""
    wanted_s = left.budget_s + MORE * left.short_s
    budget_s = next((each for each in BUDGETS_S if each >= wanted_s), BUDGETS_S[-1])
    words = shlex.split(command)
    if words[:2] != ["peakward", "run"]:
        return f"the same call with a budget of {budget_s} s."
    text = f"{budget_s // 60}m" if budget_s % 60 == 0 else f"{budget_s}s"
    kept = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if "--budget" not in (before, word) and not word.startswith("--budget=")
    ]
    return f"`{shlex.join((*kept, '--budget', text))}`."
