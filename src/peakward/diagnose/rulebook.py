"""Every rule, in the order of its code. A file of `rules/` is a rule; nothing else lists it."""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from peakward.diagnose import rules
from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.diagnose.symptom import Verdict

FAMILIES = (
    *("HOST", "MEM", "BW", "PREC", "ATTN", "COMM", "GEN", "NUM", "DEV", "LOOP"),
    "TIME",  # last: it is judged by what the others leave unexplained
)
PARTS = ("Sees", "Costs", "Example", "Lever", "Wrong when")
"""The parts of a rule's docstring after its title, in order."""


class Rule(NamedTuple):
    """A rule: one file of `rules/`."""

    code: str
    title: str
    """The claim that a finding of this rule makes."""
    told: dict[str, str]
    """The text of each of PARTS."""
    judge: Callable[[DiagnosisInput], Verdict]


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
