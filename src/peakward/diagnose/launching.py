"""Idle time in which the host was on its way to the next launch: in operators, or in Python."""

import re
from typing import NamedTuple

from peakward.diagnose.signals import Signals
from peakward.records.profile import Idle

CAUSES = ("host_bound", "launch_latency")
PYTHON = "host"
DISPATCH = ("operator", "call")
PYTHON_SHARE = 0.6
"""Of the host's time on the critical path, from which on the program's Python and not the framework's
dispatch is what takes it: of seven recorded traces of ordinary programs it was 0.14 to 0.50."""

LAUNCHING = re.compile(r"Launch|Mem(?:cpy|set|Prefetch)")
"""In the names of calls that hand the GPU work."""
MOST = 0.5
"""Of the idle time, from which on a call that hands the GPU nothing (it allocates memory, loads a module,
waits for something) takes it, and not the launching."""


class Dispatch(NamedTuple):
    """Seconds by the parts of `time_parts`, split in two."""

    seen_ns: int
    """Of both, as profiled."""
    python_share: float | None
    """Of the host's stretches on the critical path; None where there is no path."""
    python: dict[str, float]
    """In nothing of the framework, where that is most; else nothing."""
    operators: dict[str, float]


def dispatch_parts(signals: Signals) -> Dispatch | None:
    """The parts, or None without idle causes."""
    idle, time, gpu = signals.idle, signals.time, signals.gpu
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
    """Of the idle time, what one such call takes; 0 where that is not most."""
    whole_ns = sum(idle.together.by_cause_ns.get(cause, 0) for cause in CAUSES)
    in_calls_ns = [
        each.ns for each in idle.calls if each.cause in CAUSES and not LAUNCHING.search(each.call)
    ]
    share = min(max(in_calls_ns, default=0) / whole_ns, 1.0) if whole_ns else 0.0
    return share if share >= MOST else 0.0
