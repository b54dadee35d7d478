"""Splits the time of a step, or of a live loop's mean step, into parts that add up.

A profiler hardly changes the durations of kernels, but it slows the host and so changes the time
between them. Where the step was also measured without a profiler, the idle time is that median less the
time of the kernels, split in the proportions that the profile shows. Else it is the profile's own idle
time, less what the profiler itself is known to have taken.

A live loop's own clock gives the whole, and the time of pauses beyond the median. On a CPU it also gives
the waits for data and the collections, since nothing runs beside them. The operators are those of the
profiled window; where the profiler made them longer, they are cut to the time that remains. On a GPU a wait
of the host costs only the time in which the GPU is idle. The idle causes of the window say how much that is;
they are scaled to the typical step.
"""

from collections.abc import Mapping
from typing import NamedTuple

from peakward.records.finding import Basis
from peakward.records.loop import LoopTimes
from peakward.records.profile import Profile

PROFILER = "profiler"
COMPUTE = "compute"


class TimeParts(NamedTuple):
    """The seconds of one step of one device; of the whole span where the steps are not known."""

    whole_s: float
    basis: Basis
    parts: dict[str, float]
    """The seconds by part, `idle.<cause>` or `work.<phase>.<kernel>`. No moment is in two parts, and
    together they are no more than the whole."""

    def idle(self, *causes: str) -> dict[str, float]:
        """The idle parts of these causes."""
        return {f"idle.{each}": self.parts.get(f"idle.{each}", 0.0) for each in causes}

    def share(self, parts: dict[str, float]) -> float:
        """The share of the whole that these parts take."""
        return sum(parts.values()) / self.whole_s if self.whole_s else 0.0


def without(parts: Mapping[str, float], explained: Mapping[str, float]) -> dict[str, float]:
    """The parts, less the seconds that are explained."""
    return {name: max(value - explained.get(name, 0.0), 0.0) for name, value in parts.items()}


def work_part(phase: str | None, name: str) -> str:
    """The name of a kernel's part."""
    return f"work.{phase}.{name}"


def time_parts(
    profile: Profile | None, *, n_steps: int | None, step_s: float | None
) -> TimeParts | None:
    """The parts of a step; None where nothing was seen to run.

    Args:
        profile: The profile of a GPU's work, or of the host's operators.
        n_steps: The number of steps in the profile.
        step_s: The median of unprofiled steps.
    """
    if profile is None or not profile.breakdown.together.busy_ns:
        return None
    together = profile.breakdown.together
    # The mean over several devices.
    per_step = 1e-9 / (n_steps or 1) / max(len(profile.breakdown.devices), 1)
    busy_s = together.busy_ns * per_step
    work = {name: ns * per_step for name, ns in _work_ns(profile).items()}
    by_cause = {} if profile.idle is None else profile.idle.together.by_cause_ns
    seen = {cause: ns * per_step for cause, ns in by_cause.items() if cause != PROFILER}
    measured = step_s is not None and n_steps is not None
    if measured and step_s is not None:
        whole_s = max(step_s, busy_s)
        scale = (whole_s - busy_s) / (sum(seen.values()) or 1.0)
    else:
        whole_s, scale = together.span_ns * per_step - by_cause.get(PROFILER, 0) * per_step, 1.0
    idle = {f"idle.{cause}": seconds * scale for cause, seconds in seen.items()}
    basis: Basis = "profiled step" if n_steps else "profiled span"
    if measured:
        # Operators of a crowded CPU may take longer under the profiler than the whole step without it.
        basis = "measured step" if whole_s == step_s else "profiled work"
    return TimeParts(whole_s, basis, idle | work)


def _work_ns(profile: Profile) -> dict[str, float]:
    """The nanoseconds by part, each moment once: kernels that run beside compute take none, and copies
    beside a collective none."""
    together = profile.breakdown.together
    alone_ns = {COMPUTE: together.compute_ns}
    if not profile.is_of_host:
        alone_ns["communication"] = together.exposed_communication_ns
        alone_ns["memory"] = together.exposed_memory_ns
    kinds = [each.category if each.category in alone_ns else COMPUTE for each in profile.kernels]
    sums = dict.fromkeys(alone_ns, 0)
    for kind, each in zip(kinds, profile.kernels, strict=True):
        sums[kind] += each.total_ns
    work: dict[str, float] = {}
    for kind, each in zip(kinds, profile.kernels, strict=True):
        part, share = work_part(each.phase, each.name), each.total_ns / (sums[kind] or 1)
        work[part] = work.get(part, 0.0) + share * alone_ns[kind]
    return work


WAITING, WAITING_IN_PAUSES = "loop.waiting", "loop.pauses.waiting"
COLLECTING, COLLECTING_IN_PAUSES = "loop.collecting", "loop.pauses.collecting"
PAUSING = "loop.pauses.other"
WATCHED = "steps of a live loop under pw.watch"
"""The input that rules about a live loop miss without one."""
AHEAD = 0.95
"""The kernels of a profiled window and the loop's clock agree to a few hundredths."""


def loop_parts(profile: Profile | None, *, n_steps: int | None, loop: LoopTimes) -> TimeParts:
    """The parts of the mean step.

    Args:
        profile: The profile of a window; None before the first.
        n_steps: The number of steps in the profile; None without a profile.
        loop: The times of at least one step.
    """
    own = _own(loop)
    whole_s = loop.mean_s
    if profile is None or profile.is_of_host:
        seen = time_parts(profile, n_steps=n_steps, step_s=None)
        work = {} if seen is None else seen.parts
        fits = (whole_s - sum(own.values())) / (sum(work.values()) or 1.0)
        scaled = {name: seconds * min(fits, 1.0) for name, seconds in work.items()}
        return TimeParts(whole_s, "watched step", own | scaled)
    paused = {name: own[name] for name in (WAITING_IN_PAUSES, COLLECTING_IN_PAUSES, PAUSING)}
    if host_runs_ahead(profile, n_steps=n_steps, loop=loop):
        paused = {}
    seen = time_parts(profile, n_steps=n_steps, step_s=whole_s - sum(paused.values()))
    if seen is None:
        return TimeParts(whole_s, "watched step", paused)
    return TimeParts(seen.whole_s + sum(paused.values()), "watched step", seen.parts | paused)


def host_runs_ahead(profile: Profile, *, n_steps: int | None, loop: LoopTimes) -> bool:
    """Whether the host's typical step is shorter than the GPU's work in one. The host then waits for
    many steps at once in one that is no pause, and its median is the time of launching alone."""
    seen = time_parts(profile, n_steps=n_steps, step_s=None)
    if seen is None:
        return False
    busy_s = sum(seconds for name, seconds in seen.parts.items() if name.startswith("work."))
    return loop.typical_s < AHEAD * busy_s


def _own(loop: LoopTimes) -> dict[str, float]:
    """The seconds of the mean step that the loop's clock tells without a profile."""
    pauses, n = loop.pauses, loop.n_steps
    sums = {
        WAITING: (loop.waited_s or 0.0) - pauses.waited_s,
        COLLECTING: loop.collected_s - pauses.collected_s,
        WAITING_IN_PAUSES: pauses.waited_s,
        COLLECTING_IN_PAUSES: pauses.collected_s,
        PAUSING: pauses.beyond_s - pauses.waited_s - pauses.collected_s,
    }
    return {name: seconds / n for name, seconds in sums.items()}
