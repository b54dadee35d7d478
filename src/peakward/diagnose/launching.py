"""Splits the idle time before launches: the host was in the framework's operators, or in Python."""

import re
from typing import NamedTuple

from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.records.profile import Idle

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
