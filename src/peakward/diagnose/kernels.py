"""Selects the kernels or launches that a rule is about, with their parts of the time."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from peakward.diagnose.diagnosis_input import DiagnosisInput, number
from peakward.diagnose.time_parts import TimeParts, work_part
from peakward.records.finding import FindingEvidence
from peakward.records.profile import Idle, KernelGroup, OperatorRate, Profile, RangeWork, Rank

MODEL_PHASES = ("forward", "backward", "other")
"""All phases but the optimiser's."""
N_SHOWN = 3
PRODUCT = re.compile(r"^aten::(?:\w*mm|linear|matmul)$")
"""The names of operators that are matrix products."""
BY_NAME = (
    ("matmul", PRODUCT),
    ("softmax", re.compile(r"^aten::_(?:safe_)?softmax(?:_backward_data)?$")),
    ("copy", re.compile(r"^aten::(?:copy_|clone|fill_|zero_)$")),
    ("elementwise", re.compile(r"^aten::(?:add|sub|mul|div|where|masked_fill|tril|triu)_?$")),
)
"""The category of an operator's kernels, where the operator's name settles it."""


def chosen(profile: Profile, wanted: Callable[[KernelGroup], bool]) -> tuple[KernelGroup, ...]:
    """The profile's kernels that `wanted` accepts, the longest in total first."""
    return tuple(each for each in profile.kernels if wanted(each))


def parts(time: TimeParts, groups: Iterable[KernelGroup]) -> dict[str, float]:
    """The groups' parts of the time."""
    names = dict.fromkeys(work_part(each.phase, each.name) for each in groups)
    return {name: time.parts.get(name, 0.0) for name in names}


def all_work(time: TimeParts) -> dict[str, float]:
    """The parts of everything that ran."""
    return {name: value for name, value in time.parts.items() if name.startswith("work.")}


def of_ranges(time: TimeParts, profile: Profile, ranges: Iterable[RangeWork]) -> dict[str, float]:
    """The time of ranges, in parts of kernels.

    A range says its category and not its kernels. Every kernel of that phase and category therefore
    gives an equal share of its time.
    """
    wanted: dict[tuple[str, str], int] = {}
    for each in ranges:
        key = (each.direction, each.category)
        wanted[key] = wanted.get(key, 0) + each.total_ns
    found: dict[str, float] = {}
    for (phase, category), ns in wanted.items():
        groups = [it for it in profile.kernels if (it.phase, it.category) == (phase, category)]
        for name, seconds in _share_of(time, groups, ns).items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def of_operators(
    time: TimeParts, profile: Profile, operators: Iterable[OperatorRate]
) -> dict[str, float]:
    """The time of operators, in parts of kernels. Every kernel of the operator's category gives an
    equal share of its time; where the operator's name settles no category, every kernel does."""
    by_category: dict[str | None, float] = {}
    for each in operators:
        category = _category(each.name)
        by_category[category] = by_category.get(category, 0.0) + each.kernel_ns
    found: dict[str, float] = {}
    for category, ns in by_category.items():
        groups = [it for it in profile.kernels if category in (None, it.category)]
        for name, seconds in _share_of(time, groups, ns).items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def _category(operator: str) -> str | None:
    if "attention" in operator:
        return "attention" if "_math" not in operator else None
    return next((category for category, names in BY_NAME if names.search(operator)), None)


def _share_of(time: TimeParts, groups: Iterable[KernelGroup], ns: float) -> dict[str, float]:
    """The parts of `ns` of these kernels' time, taken evenly from each."""
    kernels = tuple(groups)
    whole_ns = sum(each.total_ns for each in kernels)
    share = min(ns / whole_ns, 1.0) if whole_ns else 0.0
    return {name: seconds * share for name, seconds in parts(time, kernels).items()}


def share_of_waiting(gpu: Profile, rank: Rank | None) -> float:
    """The share of a rank's exposed communication in which it waits for the late rank."""
    exposed_ns = gpu.breakdown.together.exposed_communication_ns
    waited_ns = 0 if rank is None else rank.waited_for_late_ns
    return min(waited_ns / exposed_ns, 1.0) if exposed_ns else 0.0


def shown(
    profile: Profile, groups: Iterable[KernelGroup], n_steps: int | None
) -> tuple[FindingEvidence, ...]:
    """The time a step of the first few groups."""
    return tuple(
        number(
            f"{each.name}, {each.phase}, a step" if n_steps else f"{each.name}, {each.phase}",
            each.total_ns * 1e-9 / (n_steps or 1),
            "s",
            f"profile kernels[{profile.kernels.index(each)}].total_ns",
        )
        for each in tuple(groups)[:N_SHOWN]
    )


CAUSES = ("host_bound", "launch_latency")
PYTHON = "host"
DISPATCH = ("operator", "call")
PYTHON_SHARE = 0.6
"""From this share of the host's time on the critical path on, the program's Python is the cause and not
the framework's dispatch. Seven recorded traces of ordinary programs have 0.14 to 0.50."""
LAUNCHING = re.compile(r"Launch|Mem(?:cpy|set|Prefetch)")
"""A part of the names of calls that hand the GPU work."""
MOST = 0.5
"""From this share of the idle time on, one call that hands the GPU no work (it allocates memory, loads
a module or waits) is the cause, and not launching."""


class Dispatch(NamedTuple):
    """The idle seconds before launches, by part of `time_parts`: those in Python and those in
    operators."""

    seen_ns: int
    """The sum of both, as profiled."""
    python_share: float | None
    """The share of Python in the host's time on the critical path; None without a critical path."""
    python: dict[str, float]
    """The seconds in Python, where Python takes most of the host's time; else 0."""
    operators: dict[str, float]


def dispatch_parts(given: DiagnosisInput) -> Dispatch | None:
    """The split; None where the profile has no idle causes."""
    idle, time, gpu = given.idle, given.time, given.gpu
    if idle is None or time is None or gpu is None:
        return None
    seen_ns = sum(idle.together.by_cause_ns.get(cause, 0) for cause in CAUSES)
    launching = 1 - _blocked_share(idle)
    parts = {name: seconds * launching for name, seconds in time.idle(*CAUSES).items()}
    if gpu.path is None:
        return Dispatch(seen_ns, None, dict.fromkeys(parts, 0.0), parts)
    by_kind = gpu.path.by_kind_ns
    python_ns = by_kind.get(PYTHON, 0)
    host_ns = python_ns + sum(by_kind.get(kind, 0) for kind in DISPATCH)
    share = python_ns / host_ns if host_ns else 0.0
    taken = share if share >= PYTHON_SHARE else 0.0
    return Dispatch(
        seen_ns,
        share,
        {name: seconds * taken for name, seconds in parts.items()},
        {name: seconds * (1 - taken) for name, seconds in parts.items()},
    )


def _blocked_share(idle: Idle) -> float:
    """The share of the idle time in the longest call that launches nothing; 0 where that is less than
    half."""
    whole_ns = sum(idle.together.by_cause_ns.get(cause, 0) for cause in CAUSES)
    in_calls_ns = [
        each.ns for each in idle.calls if each.cause in CAUSES and not LAUNCHING.search(each.call)
    ]
    share = min(max(in_calls_ns, default=0) / whole_ns, 1.0) if whole_ns else 0.0
    return share if share >= MOST else 0.0
