"""Finds the ranks whose own work lasts longer than that of ranks with the same work."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

from peakward.stats.summary import student_t_quantile

LEAST_STEPS = 4
"""The fewest steps of a job that are compared."""
LEAST_JOBS = 3
"""The fewest jobs. What disturbs a rank for some seconds disturbs all steps of one job alike, so that steps
alone never tell such a rank from a slow one."""
UNLIKELY = 0.01
"""The probability with which chance names any rank, at most."""
WORTH = 1.03
"""The least ratio that is worth a name."""


class Straggler(NamedTuple):
    """A rank whose own work lasts longer. Times are medians over jobs of the medians over steps."""

    rank: int
    own_s: float
    others_s: float
    """The median of the other ranks."""
    n_jobs: int

    @property
    def longer(self) -> float:
        """Its own work over that of the others, less 1."""
        return self.own_s / self.others_s - 1


class _Job(NamedTuple):
    """One rank in one job."""

    own_s: float
    others_s: float
    ratio: float
    """The mean over steps of the logarithm of the rank's time over the median of the others'."""
    excess_s: float
    """The mean over steps of the difference."""


def stragglers(groups: Iterable[Mapping[int, Sequence[float]]]) -> tuple[Straggler, ...]:
    """The ranks that last longer than the others, the slowest first; none where chance explains it, or where
    there are fewer than three jobs or four steps.

    In each step a rank is held against the median of the others, so that what slows all of them cancels; the
    mean over its steps is one observation of its job. A slow device lasts longer by the same factor in every
    job, a wait of its host by the same time: one of the two means over jobs must be above 0 by more than
    Student's t allows, at the level at which chance names any rank in 1% of runs (Bonferroni, over the ranks
    and the two means). Of two ranks the median of the others is the other one, so that the slower is named:
    by times alone nobody can say whether it is slow or the other fast.

    Simulated (lognormal noise of 2 to 30%, between ranks of a job up to 30%, a fifth of them twice as slow by
    chance): of 2 to 8 equal ranks one is named in 0 to 2% of runs.

    Args:
        groups: seconds of each step by rank, of the ranks of a job that have the same work. A rank is in one
            group of a job at most.
    """
    by_rank: dict[int, list[_Job]] = defaultdict(list)
    for group in groups:
        if len(group) > 1 and min(map(len, group.values())) >= LEAST_STEPS:
            for rank in group:
                by_rank[rank].append(_job(rank, group))
    found = []
    for rank, jobs in by_rank.items():
        if len(jobs) >= LEAST_JOBS and _is_beyond_chance(jobs, len(by_rank)):
            own_s, others_s = (median(side) for side in list(zip(*jobs, strict=True))[:2])
            found.append(Straggler(rank, own_s, others_s, len(jobs)))
    worth = [each for each in found if each.own_s >= WORTH * each.others_s]
    return tuple(sorted(worth, key=lambda each: -each.longer))


def _job(rank: int, group: Mapping[int, Sequence[float]]) -> _Job:
    own = group[rank]
    others = [
        median(each)
        for each in zip(*(steps for other, steps in group.items() if other != rank), strict=False)
    ]
    pairs = list(zip(own, others, strict=False))
    return _Job(
        median(own),
        median(others),
        fmean(math.log(mine / theirs) for mine, theirs in pairs),
        fmean(mine - theirs for mine, theirs in pairs),
    )


def _is_beyond_chance(jobs: Sequence[_Job], n_ranks: int) -> bool:
    level = student_t_quantile(1 - UNLIKELY / (2 * n_ranks), len(jobs) - 1)
    means = ([each.ratio for each in jobs], [each.excess_s for each in jobs])
    return any(
        fmean(each) > 0 and fmean(each) > level * stdev(each) / math.sqrt(len(each))
        for each in means
    )
