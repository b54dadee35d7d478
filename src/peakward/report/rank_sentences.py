"""A job's ranks in sentences: who is late and why, communication that nothing hides, and
unequal compute."""

from collections.abc import Iterator

from peakward.records.profile import Excess, Job, Rank
from peakward.report.format import format_cell

NS = 1e-9
UNEQUAL = 1.05
"""The largest compute over the mean from which it is worth a sentence."""


def sentences(found: Job) -> tuple[str, ...]:
    """Paragraphs of a job's page."""
    told = (_late(found), _communication(found), _imbalance(found))
    return tuple(" ".join(each) for each in map(tuple, told) if each)


def _late(found: Job) -> Iterator[str]:
    slow = found.straggler if found.late is None else found.late
    rank = next((each for each in found.ranks if each.rank == slow), None)
    if rank is None or not rank.n_last:
        return
    mean = _time(rank.behind_ns / rank.n_last)
    yield (
        f"Rank {rank.rank} is the last to begin {rank.n_last:,} of {found.n_collectives:,} collectives, on "
        f"average {mean} after the last of the others."
    )
    if found.late_by:
        said = ", ".join(_excess(each, found.of_host) for each in found.late_by)
        yield f"Before these it has, beyond the mean of the other ranks: {said}."


def _excess(each: Excess, of_host: bool) -> str:
    if each.kind == "work":
        return f"{_time(each.ns)} of {each.name}"
    where = "" if each.name is None else f" while its host is in {each.name}"
    return (
        f"{_time(each.ns)} in which {'no operator runs' if of_host else 'its GPU is idle'}{where}"
    )


def _communication(found: Job) -> Iterator[str]:
    ranks = [each for each in found.ranks if each.communication_ns and each.exposed_ns is not None]
    if not ranks:
        return
    worst, best = max(ranks, key=_exposed), min(ranks, key=_exposed)
    together, exposed = sum(each.communication_ns for each in ranks), sum(map(_exposed, ranks))
    hidden = format_cell(1 - exposed / together, "share")
    said = _time(_exposed(worst))
    if len(ranks) > 1:
        said = f"{_time(_exposed(best))} (rank {best.rank}) to {said} (rank {worst.rank})"
    waited = sum(each.waited_ns for each in ranks)
    work = "operator" if found.of_host else "kernel"
    yield (
        f"Communication runs with no other {work} beside it for {said}; {hidden} of all communication is "
        "hidden by compute."
    )
    if found.n_collectives:
        share = format_cell(min(waited / together, 1.0), "share")
        yield f"{share} of communication is waiting for the last rank to begin."


def _exposed(rank: Rank) -> int:
    return rank.exposed_ns or 0


def _imbalance(found: Job) -> Iterator[str]:
    if found.imbalance is None or found.imbalance < UNEQUAL:
        return
    most, least = (each(found.ranks, key=lambda rank: rank.compute_ns) for each in (max, min))
    yield (
        f"Compute is unequal: {_time(least.compute_ns)} on rank {least.rank}, {_time(most.compute_ns)} on "
        f"rank {most.rank}, which is {format_cell(found.imbalance, 'ratio')} the mean."
    )


def _time(ns: float) -> str:
    return format_cell(ns * NS, "s")
