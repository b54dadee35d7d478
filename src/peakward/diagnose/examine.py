"""Runs all rules over a case or a trace, and ranks their findings.

A file of `rules/` is a rule, in the order of its code; nothing else lists it.
"""

import dataclasses
import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from peakward.diagnose import rules
from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict
from peakward.diagnose.gains import fastest_first, gains, smallest_first
from peakward.diagnose.time_parts import TimeParts
from peakward.records.finding import Abstention, Diagnosis, Finding


class Rule(NamedTuple):
    """A rule: one file of `rules/`."""

    code: str
    title: str
    """The claim that a finding of this rule makes."""
    told: dict[str, str]
    """The text of each of PARTS."""
    judge: Callable[[DiagnosisInput], Verdict]


Seen = tuple[Rule, Symptom]
WHOLE = 1 - 1e-9
"""From this share on nothing is left of the time, so that a finding has no bound."""


def examine(given: DiagnosisInput) -> Diagnosis:
    """Runs every rule, and gives the ranked findings, the abstentions and the rules that found nothing.

    The last rule sees the time that the other findings explain, and is ranked last.
    """
    *others, last = RULES
    verdicts = [(rule, rule.judge(given)) for rule in others]
    ranked = _ranked(verdicts, given.time)
    explained = _added_up([each for _, each in ranked])
    verdicts.append((last, last.judge(dataclasses.replace(given, explained=explained))))
    ranked += _ranked(verdicts[-1:], given.time)
    time = given.time
    left = {} if time is None else dict(time.parts)
    return Diagnosis(
        subject=given.subject,
        case=given.configured,
        whole_s=None if time is None else time.whole_s,
        basis=None if time is None else time.basis,
        findings=tuple(_finding(rule, each, given, left) for rule, each in ranked),
        abstentions=tuple(each for _, each in verdicts if isinstance(each, Abstention)),
        clean=tuple(rule.code for rule, each in verdicts if each is None),
    )


def _ranked(verdicts: Sequence[tuple[Rule, Verdict]], time: TimeParts | None) -> list[Seen]:
    """The symptoms by the time that they hold back, longest first; those that lose nothing come last."""
    seen = [(rule, each) for rule, each in verdicts if isinstance(each, Symptom)]
    return sorted(seen, key=lambda it: (it[1].is_limit, -_share(it[1], time)))


def _added_up(found: Sequence[Symptom]) -> dict[str, float]:
    """The seconds that the symptoms explain, by part of the time."""
    explained: dict[str, float] = {}
    for each in found:
        for part, seconds in each.parts.items():
            explained[part] = explained.get(part, 0.0) + seconds
    return explained


def _share(symptom: Symptom, time: TimeParts | None) -> float:
    if symptom.share is not None:
        return symptom.share
    return 0.0 if time is None else time.share(dict(symptom.parts))


def _finding(
    rule: Rule, symptom: Symptom, given: DiagnosisInput, left: dict[str, float]
) -> Finding:
    """The finding of a symptom. Its time is taken out of `left`, so that later findings do not count it
    again."""
    held_s = sum(symptom.parts.values()) if symptom.parts else None
    beyond_s = 0.0
    for part, seconds in symptom.parts.items():
        there = left.get(part, seconds)
        taken = min(seconds, there)
        left[part] = there - taken
        beyond_s += taken
    share = _share(symptom, given.time)
    bound = None
    if held_s is not None and symptom.is_all and share < WHOLE:
        bound = 1 / (1 - share)
    known = symptom.share is not None or held_s is not None
    found = Finding(
        code=rule.code,
        title=symptom.title or rule.title,
        cause=symptom.cause,
        evidence=symptom.evidence,
        advice=symptom.advice,
        held_back_s=held_s,
        beyond_s=None if held_s is None else beyond_s,
        share=share if known else None,
        bound=bound,
        held_back_bytes=symptom.held_back_bytes,
    )
    levers = gains(symptom.levers, given, bound)
    order = smallest_first if rule.code.startswith("MEM") else fastest_first
    return msgspec.structs.replace(found, gains=order(levers))


FAMILIES = (
    *("HOST", "MEM", "BW", "PREC", "ATTN", "COMM", "GEN", "NUM", "DEV", "LOOP"),
    "TIME",  # last: it is judged by what the others leave unexplained
)
PARTS = ("Sees", "Costs", "Example", "Lever", "Wrong when")
"""The parts of a rule's docstring after its title, in order."""


def _rule(module: Any) -> Rule:
    title, _, rest = (module.__doc__ or "").strip().partition("\n\n")
    told: dict[str, str] = {}
    for line in rest.splitlines():
        name = next((each for each in PARTS if line.startswith(f"{each}: ")), None)
        if name is not None:
            told[name] = line.removeprefix(f"{name}: ")
        elif told:
            told[list(told)[-1]] += f" {line}"
    return Rule(module.CODE, title, told, module.judge)


def _place(rule: Rule) -> tuple[int, str]:
    return FAMILIES.index(rule.code.rstrip("0123456789")), rule.code


RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            _rule(import_module(f"{rules.__name__}.{found.name}"))
            for found in pkgutil.iter_modules(rules.__path__)
        ),
        key=_place,
    )
)
