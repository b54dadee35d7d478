"""Ranks whose own work lasts longer than that of the others, in measured jobs of layouts (COMM002)."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from peakward.records.case import LayoutCase
from peakward.records.measurement import Measurement
from peakward.records.study import Conclusion
from peakward.stats.stragglers import LEAST_JOBS, Straggler, stragglers
from peakward.studies.claims import Sentence
from peakward.studies.engine import Row, View
from peakward.studies.values import Value


def own_work(made: Measurement) -> tuple[dict[int, tuple[float, ...]], ...]:
    """The seconds of each step that ranks did not wait in collectives, by rank: those of one stage of a
    pipeline together, as its stages have unequal work. None of ZeRO-1, whose ranks update unequal shares."""
    if made.ranks is None or not isinstance(made.case, LayoutCase):
        return ()
    layout, ranks = made.case.layout, made.ranks.ranks
    size = layout.dp * layout.tp
    if size == 1 or layout.data == "zero1" or not all(each.own_s for each in ranks):
        return ()
    stages = (range(at, at + size) for at in range(0, layout.n_ranks, size))
    return tuple({rank: ranks[rank].own_s for rank in stage} for stage in stages)


class Longest(NamedTuple):
    """The rank of a job with most work of its own, medians over steps in seconds."""

    rank: int
    own_s: float
    others_s: float


def longest(row: Row[Any]) -> Longest | None:
    """The rank whose work lasts longest beside the median of those with the same work."""
    found = []
    for stage in () if row.measurement is None else own_work(row.measurement):
        typical = {rank: median(steps) for rank, steps in stage.items()}
        for rank, own_s in typical.items():
            others = (each for other, each in typical.items() if other != rank)
            found.append(Longest(rank, own_s, median(others)))
    return max(found, key=lambda each: each.own_s / each.others_s, default=None)


def _column(name: str, field: str, unit: Any) -> Value:
    return Value(name, unit, lambda row: getattr(longest(row), field, None))


COLUMNS = (
    _column("rank with most", "rank", "count"),
    _column("its own work", "own_s", "s"),
    _column("that of the others", "others_s", "s"),
)


def claim(view: View[Any]) -> Iterator[Conclusion]:
    """Names the late ranks of the jobs of as many ranks, over all that were measured."""
    for n, jobs in _jobs(view).items():
        for each in _found(jobs):
            yield from _told(n, each, jobs)


def notes(view: View[Any]) -> Iterator[str]:
    """Tells that no rank is late, or that it is not known."""
    for n, jobs in _jobs(view).items():
        if len(jobs) < LEAST_JOBS:
            yield (
                f"Whether one of {n} ranks is late is not computed: it takes {LEAST_JOBS} jobs of layouts "
                f"whose ranks have equal work, got {len(jobs)}."
            )
        elif not _found(jobs):
            yield (
                f"On {n} ranks, none is late: over {len(jobs)} jobs no rank's own work lasts longer than "
                "that of the others by more than chance explains."
            )


def _jobs(view: View[Any]) -> dict[int, list[Measurement]]:
    """The measurements whose ranks can be compared, by number of ranks."""
    found: dict[int, list[Measurement]] = {}
    for made in view.readings:
        if isinstance(made.case, LayoutCase) and made.ranks and made.case.layout.n_ranks > 1:
            found.setdefault(made.case.layout.n_ranks, []).extend([made] if own_work(made) else [])
    return found


def _found(jobs: Sequence[Measurement]) -> tuple[Straggler, ...]:
    return stragglers(stage for made in jobs for stage in own_work(made))


def _told(n: int, found: Straggler, jobs: Sequence[Measurement]) -> Iterator[Conclusion]:
    told = Sentence()
    longer = told("own work over that of the others, less 1", found.longer, "share", *jobs)
    own = told("own work of a step", found.own_s, "s", *jobs)
    others = told("own work of a step of the others", found.others_s, "s", *jobs)
    n_jobs = told("jobs", found.n_jobs, "count", *jobs)
    clocks = _clocks(told, found.rank, jobs)
    whose = "the other one, which waits" if n == 2 else "the others, which wait"
    more = " Perhaps the other one is fast: times alone do not say." if n == 2 else ""
    yield from told.end(
        f"On {n} ranks, rank {found.rank} is late (COMM002): its own work of a step lasts {longer} longer "
        f"than that of {whose} for it ({own}, not {others}; medians of {n_jobs} jobs).{clocks}{more} Look at "
        "its clock, its temperature and its host; traces of all ranks tell what it does longer."
    )


def _clocks(told: Sentence, rank: int, jobs: Sequence[Measurement]) -> str:
    """A sentence about the clocks of its GPU and of the others, where all are known."""
    sides: dict[bool, list[float]] = {True: [], False: []}
    for made in jobs:
        for number, each in enumerate(() if made.ranks is None else made.ranks.ranks):
            if each.sm_clock_mhz is None:
                return ""
            sides[number == rank].append(each.sm_clock_mhz)
    own = told("clock of its GPU, MHz", median(sides[True]), "count", *jobs)
    others = told("clock of the others, MHz", median(sides[False]), "count", *jobs)
    return f" Its GPU ran at {own} MHz, the others at {others} MHz."
