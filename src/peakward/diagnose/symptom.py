"""What a rule says, before it is ranked and its gains are predicted."""

from collections.abc import Mapping
from typing import NamedTuple

from peakward.records.finding import Abstention, Evidence, Quantity


class Symptom(NamedTuple):
    """Something that a rule saw."""

    cause: str
    evidence: tuple[Evidence, ...]
    advice: str
    levers: tuple[str, ...] = ()
    """Names of the catalogue's; those that do not apply to the case are left out later."""
    parts: Mapping[str, float] = {}
    """Seconds of the parts of `time_parts` that this is about."""
    is_all: bool = True
    """Whether these are all that the levers could take away, so that Amdahl's bound follows."""
    held_back_bytes: int | None = None
    share: float | None = None
    """Where it does not follow from the parts."""
    title: str | None = None
    """In place of the rule's, where that cannot say what was found."""
    is_limit: bool = False
    """Whether nothing is lost, and this is what the time goes to: ranked after all that lose some."""


Verdict = Symptom | Abstention | None
"""None: the rule looked, and there is nothing."""

WORTH_SHARE = 0.03
"""Of the whole time. What is less would at best make the step 1.03 times as fast: seldom worth a change
of the program, and near what three processes can tell from none."""


def number(name: str, value: float, unit: Quantity, stored: str) -> Evidence:
    """A piece of evidence."""
    return Evidence(name=name, value=float(value), unit=unit, stored=stored)


def absent(**signals: object) -> tuple[str, ...]:
    """Of these, by their names, those that are None."""
    return tuple(f"a {name}" for name, signal in signals.items() if signal is None)


def abstain(code: str, *missing: str) -> Abstention:
    """For want of these signals."""
    return Abstention(code=code, missing=missing)
