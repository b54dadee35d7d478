"""Splits the mean unprofiled step of a live loop into parts that add up.

The loop's own clock gives the whole, and the time of pauses beyond the median. On a CPU it also gives
the waits for data and the collections, since nothing runs beside them. The operators are those of the
profiled window; where the profiler made them longer, they are cut to the time that remains.

On a GPU a wait of the host costs only the time in which the GPU is idle. The idle causes of the window
say how much that is; they are scaled to the typical step.
"""

from peakward.diagnose.time_parts import TimeParts, time_parts
from peakward.records.loop import LoopTimes
from peakward.records.profile import Profile

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
