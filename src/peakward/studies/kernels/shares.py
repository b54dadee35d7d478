"""What a profile's groups say of matmuls, categories and phases. Times are nanoseconds."""

from collections.abc import Sequence

from peakward.records.profile import Profile, WorkPhase
from peakward.studies.readings import ratio

MATMUL = "matmul"
MOVED = "memory"
"""The driver's own copies and sets: work, but no kernels."""
PHASES: tuple[WorkPhase, ...] = ("forward", "backward", "optimizer", "other")
PASSES_BOTH: tuple[WorkPhase, ...] = ("forward", "backward")


def category_ns(profile: Profile, phases: Sequence[WorkPhase] = PHASES) -> dict[str, int]:
    """Kernel time of each category in these phases, the longest first."""
    totals: dict[str, int] = {}
    for each in profile.categories:
        if each.phase in phases and each.name != MOVED:
            totals[each.name] = totals.get(each.name, 0) + each.total_ns
    return dict(sorted(totals.items(), key=lambda each: -each[1]))


def work_ns(profile: Profile, phases: Sequence[WorkPhase] = PHASES) -> int:
    """Kernel time in these phases."""
    return sum(category_ns(profile, phases).values())


def share_of(category: str, profile: Profile, phases: Sequence[WorkPhase] = PHASES) -> float | None:
    """Of kernel time in these phases; None where no kernel ran in them."""
    return ratio(category_ns(profile, phases).get(category, 0), work_ns(profile, phases))
