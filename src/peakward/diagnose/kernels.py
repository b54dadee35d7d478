"""Kernels of a profile that a rule is about: their parts of the time, and evidence of them."""

from collections.abc import Callable, Iterable

from peakward.diagnose.symptom import number
from peakward.diagnose.time_parts import TimeParts, work_part
from peakward.records.finding import Evidence
from peakward.records.profile import Group, Profile, RangeWork

MODEL_PHASES = ("forward", "backward", "other")
"""All but the optimiser."""
N_SHOWN = 3


def chosen(profile: Profile, wanted: Callable[[Group], bool]) -> tuple[Group, ...]:
    """Those of the profile's kernels, the longest in total first."""
    return tuple(each for each in profile.kernels if wanted(each))


def parts(time: TimeParts, groups: Iterable[Group]) -> dict[str, float]:
    """Their parts of the time."""
    names = dict.fromkeys(work_part(each.phase, each.name) for each in groups)
    return {name: time.parts.get(name, 0.0) for name in names}


def all_work(time: TimeParts) -> dict[str, float]:
    """Everything that ran."""
    return {name: value for name, value in time.parts.items() if name.startswith("work.")}


def of_ranges(time: TimeParts, profile: Profile, ranges: Iterable[RangeWork]) -> dict[str, float]:
    """The work of ranges, as amounts of the kernels of their phase and category, each its share.

    A range does not say which kernels are its own, only of which category they are.
    """
    wanted: dict[tuple[str, str], int] = {}
    for each in ranges:
        key = (each.direction, each.category)
        wanted[key] = wanted.get(key, 0) + each.total_ns
    found: dict[str, float] = {}
    for (phase, category), ns in wanted.items():
        groups = chosen(profile, lambda it, p=phase, c=category: (it.phase, it.category) == (p, c))  # type: ignore[misc]
        whole_ns = sum(each.total_ns for each in groups)
        if whole_ns:
            share = min(ns / whole_ns, 1.0)
            for name, seconds in parts(time, groups).items():
                found[name] = found.get(name, 0.0) + seconds * share
    return found


def shown(groups: Iterable[Group], n_steps: int | None) -> tuple[Evidence, ...]:
    """Of the first few, how long each takes a step."""
    return tuple(
        number(
            f"{each.name}, {each.phase}, a step" if n_steps else f"{each.name}, {each.phase}",
            each.total_ns * 1e-9 / (n_steps or 1),
            "s",
            f"profile kernels[{each.phase}, {each.name}].total_ns",
        )
        for each in tuple(groups)[:N_SHOWN]
    )
