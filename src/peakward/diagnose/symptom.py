"""The answer of a rule, before it is ranked and its gains are predicted."""

from collections.abc import Mapping
from typing import NamedTuple

from peakward.records.finding import Abstention, Evidence, Quantity


class Symptom(NamedTuple):
    """A fault that a rule saw."""

    cause: str
    evidence: tuple[Evidence, ...]
    advice: str
    levers: tuple[str, ...] = ()
    """The names of levers that may help; levers that do not apply to the case are left out later."""
    parts: Mapping[str, float] = {}
    """The seconds that the symptom is about, by part of `time_parts`."""
    is_all: bool = True
    """Whether the levers can take away no more than `parts`, so that Amdahl's bound follows."""
    held_back_bytes: int | None = None
    share: float | None = None
    """The share of the whole, where it does not follow from `parts`."""
    title: str | None = None
    """The title of the finding, where the rule's own cannot say what was found."""
    is_limit: bool = False
    """Whether nothing is lost and the symptom only says where the time goes; it is ranked after all
    others."""


Verdict = Symptom | Abstention | None
"""None means that the rule judged and found nothing."""

WORTH_SHARE = 0.03
"""The smallest share of the whole time that is worth a finding. Less would at best make the step 1.03
times as fast, which is seldom worth a change of the program and near the smallest difference that three
processes can tell."""


def number(name: str, value: float, unit: Quantity, stored: str) -> Evidence:
    """A piece of evidence."""
    return Evidence(name=name, value=float(value), unit=unit, stored=stored)


def absent(**given: object) -> tuple[str, ...]:
    """The names of those inputs that are None."""
    return tuple(f"a {name}" for name, signal in given.items() if signal is None)


def abstain(code: str, *missing: str) -> Abstention:
    """An abstention that names the missing inputs."""
    return Abstention(code=code, missing=missing)
