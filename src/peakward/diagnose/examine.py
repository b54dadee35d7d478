"""All rules over what is known of a case or a trace."""

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
    """What the rules find, ranked; which could not judge; which found nothing."""
    verdicts = [(rule, rule.judge(signals)) for rule in RULES]
    seen = [(rule, each) for rule, each in verdicts if isinstance(each, Symptom)]
    ranked = _ranked(seen, signals.time)
    left = dict(signals.time.parts) if signals.time is not None else {}
    time = signals.time
    return Diagnosis(
        subject=signals.subject,
        case=signals.configured,
        whole_s=None if time is None else time.whole_s,
        basis=None if time is None else time.basis,
        findings=tuple(_finding(rule, each, signals, left) for rule, each in ranked),
        abstentions=tuple(each for _, each in verdicts if isinstance(each, Abstention)),
        clean=_clean(verdicts, ranked),
    )


def _ranked(seen: Sequence[Seen], time: TimeParts | None) -> list[Seen]:
    """Those that hold back most first; last what loses nothing."""
    weighed: list[tuple[float, Seen]] = []
    for rule, each in seen:
        share = _unexplained(each, seen, time) if each.narrower else _share(each, time)
        if share >= each.least_unexplained:
            weighed.append((share, (rule, each)))
    return [each for _, each in sorted(weighed, key=lambda it: (it[1][1].is_limit, -it[0]))]


def _unexplained(symptom: Symptom, seen: Sequence[Seen], time: TimeParts | None) -> float:
    """Its share of the time, less what narrower ones are about too."""
    if time is None:
        return 0.0
    left = dict(symptom.parts)
    for rule, other in seen:
        if rule.code not in symptom.narrower:
            continue
        for part, seconds in other.parts.items():
            if part in left:
                left[part] = max(left[part] - seconds, 0.0)
    return time.share(left)


def _clean(verdicts: Sequence[tuple[Rule, Verdict]], found: Sequence[Seen]) -> tuple[str, ...]:
    """The rules that looked and found nothing, or nothing of their own."""
    told = {rule.code for rule, _ in found}
    return tuple(
        rule.code
        for rule, each in verdicts
        if each is None or (isinstance(each, Symptom) and rule.code not in told)
    )


def _share(symptom: Symptom, time: TimeParts | None) -> float:
    if symptom.share is not None:
        return symptom.share
    return 0.0 if time is None else time.share(dict(symptom.parts))


def _finding(rule: Rule, symptom: Symptom, signals: Signals, left: dict[str, float]) -> Finding:
    """The finding; what it is about is taken from what is left for those after it."""
    held_s = sum(symptom.parts.values()) if symptom.parts else None
    beyond_s = 0.0
    for part, seconds in symptom.parts.items():
        taken = min(seconds, left.get(part, 0.0))
        left[part] = left.get(part, 0.0) - taken
        beyond_s += taken
    share = _share(symptom, signals.time)
    bound = None
    if held_s is not None and symptom.is_all and share < WHOLE:
        bound = 1 / (1 - share)
    known = symptom.share is not None or held_s is not None
    found = Finding(
        code=rule.code,
        title=rule.title,
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
