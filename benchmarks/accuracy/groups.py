"""The errors of each kind of case."""

import math
from collections.abc import Sequence
from statistics import median

from accuracy.records import Group, Replayed
from peakward.records.prediction import Source

SOURCES: tuple[Source, ...] = ("calibrated", "datasheet")
FAMILIES = {"gpt2": "GPT-2", "llama": "Llama", "qwen": "Qwen", "mistral": "Mistral"}
"""By the beginning of a shape's name; the others are the project's own sizes."""


def kinds(case: Replayed, source: Source) -> dict[str, str]:
    """What the case is of each kind."""
    configuration = case.case.configuration
    captured = ", captured" if configuration.cuda_graphs else ""
    name = case.case.model.name
    return {
        "all": "all",
        "waits for": case.by(source).bound,
        "seen": f"{case.seen}, waits for the {case.calibrated.bound}",
        "measurement": case.verdict,
        "pass": case.case.workload.pass_,
        "precision": configuration.precision,
        "attention": configuration.attention,
        "checkpointing": configuration.checkpointing,
        "execution": ("eager" if configuration.compile == "none" else "compiled") + captured,
        "family": next((FAMILIES[each] for each in FAMILIES if name.startswith(each)), "own sizes"),
        "model": name,
    }


def groups(cases: Sequence[Replayed]) -> list[Group]:
    """Of both sources, kind by kind."""
    return [
        group(source, kind, value, members)
        for source in SOURCES
        for (kind, value), members in by_kind(cases, source).items()
    ]


def by_kind(cases: Sequence[Replayed], source: Source) -> dict[tuple[str, str], list[Replayed]]:
    """The cases of each value of each kind: kinds as `kinds` has them, values by name."""
    found: dict[tuple[str, str], list[Replayed]] = {}
    for each in cases:
        for key in kinds(each, source).items():
            found.setdefault(key, []).append(each)
    order = list(kinds(cases[0], source)) if cases else []
    return {key: found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))}


def group(source: Source, kind: str, value: str, cases: Sequence[Replayed]) -> Group:
    """The errors of some cases."""
    errors = [each.error(source) for each in cases]
    sizes = [abs(each) for each in errors]
    return Group(
        source=source,
        kind=kind,
        value=value,
        n=len(cases),
        median=median(sizes),
        p90=nine_in_ten(sizes),
        worst=max(sizes),
        bias=median(errors),
        coverage=sum(each.held(source) for each in cases) / len(cases),
    )


def nine_in_ten(sizes: Sequence[float]) -> float:
    """The least of them that nine in ten do not exceed (nearest rank)."""
    return sorted(sizes)[math.ceil(0.9 * len(sizes)) - 1]
