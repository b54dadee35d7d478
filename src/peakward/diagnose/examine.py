"""All rules over what is known of a case or a trace."""

import dataclasses
from collections.abc import Sequence

import msgspec

from peakward.diagnose.gains import fastest_first, gains, smallest_first
from peakward.diagnose.rulebook import RULES, Rule
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import Symptom, Verdict
from peakward.diagnose.time_parts import TimeParts
from peakward.records.finding import Abstention, Diagnosis, Finding

Seen = tuple[Rule, Symptom]
WHOLE = 1 - 1e-9
"""A share from which on nothing would be left, so that there is no bound."""


def examine(signals: Signals) -> Diagnosis:
    """What the rules find, ranked; which could not judge; which found nothing.

    The last rule sees what the others are about, and is ranked last.
    """
    *rules, last = RULES
    verdicts = [(rule, rule.judge(signals)) for rule in rules]
    ranked = _ranked(verdicts, signals.time)
    explained = _added_up([each for _, each in ranked])
    verdicts.append((last, last.judge(dataclasses.replace(signals, explained=explained))))
    ranked += _ranked(verdicts[-1:], signals.time)
    time = signals.time
    left = {} if time is None else dict(time.parts)
    return Diagnosis(
        subject=signals.subject,
        case=signals.configured,
        whole_s=None if time is None else time.whole_s,
        basis=None if time is None else time.basis,
        findings=tuple(_finding(rule, each, signals, left) for rule, each in ranked),
        abstentions=tuple(each for _, each in verdicts if isinstance(each, Abstention)),
        clean=tuple(rule.code for rule, each in verdicts if each is None),
    )


def _ranked(verdicts: Sequence[tuple[Rule, Verdict]], time: TimeParts | None) -> list[Seen]:
    """Those that hold back most first; last what loses nothing."""
    seen = [(rule, each) for rule, each in verdicts if isinstance(each, Symptom)]
    return sorted(seen, key=lambda it: (it[1].is_limit, -_share(it[1], time)))


def _added_up(found: Sequence[Symptom]) -> dict[str, float]:
    """The time that they are about, by part."""
    explained: dict[str, float] = {}
    for each in found:
        for part, seconds in each.parts.items():
            explained[part] = explained.get(part, 0.0) + seconds
    return explained


def _share(symptom: Symptom, time: TimeParts | None) -> float:
    if symptom.share is not None:
        return symptom.share
    return 0.0 if time is None else time.share(dict(symptom.parts))


def _finding(rule: Rule, symptom: Symptom, signals: Signals, left: dict[str, float]) -> Finding:
    """The finding; what it is about is taken from what is left for those after it."""
    held_s = sum(symptom.parts.values()) if symptom.parts else None
    beyond_s = 0.0
    for part, seconds in symptom.parts.items():
        there = left.get(part, seconds)
        taken = min(seconds, there)
        left[part] = there - taken
        beyond_s += taken
    share = _share(symptom, signals.time)
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
    levers = gains(symptom.levers, signals, bound)
    order = smallest_first if rule.code.startswith("MEM") else fastest_first
    return msgspec.structs.replace(found, gains=order(levers))
