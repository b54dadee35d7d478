"""The tables that compare the ranks of a job."""

from collections.abc import Sequence

from peakward.records.finding import Diagnosis
from peakward.records.profile import Job
from peakward.records.study import Column, Table
from peakward.report.format import format_cell
from peakward.report.profile.cells import NS


def ranks(found: Job, most: int | None = None) -> Table:
    """The compute time, waits and late starts of each rank. Beyond `most` ranks, only those that were last
    most often."""
    kept = found.ranks
    if most is not None and len(kept) > most:
        often = sorted(kept, key=lambda each: (-each.n_last, -each.compute_ns))[:most]
        kept = tuple(each for each in kept if each in often)
    said = []
    if found.n_collectives:
        said.append(
            "Clocks are aligned by the ends of collectives, which all ranks reach together."
        )
    if found.imbalance is not None:
        ratio = format_cell(found.imbalance, "ratio")
        said.append(f"The rank that computed most took {ratio} the mean of all ranks.")
    if len(kept) < len(found.ranks):
        n_left = len(found.ranks) - len(kept)
        said.append(f"{n_left:,} ranks that were seldom the last to begin are left out.")
    return Table(
        title="Ranks",
        columns=(
            Column(name="rank"),
            Column(name="file", unit="name"),
            Column(name="compute", unit="s"),
            Column(name="communication", unit="s"),
            Column(name="idle", unit="s"),
            Column(name="waiting for the last rank", unit="s"),
            Column(name="last to begin", unit="count"),
        ),
        rows=tuple(
            (
                str(each.rank),
                each.source,
                each.compute_ns * NS,
                each.communication_ns * NS,
                None if each.idle_ns is None else each.idle_ns * NS,
                each.waited_ns * NS if found.n_collectives else None,
                each.n_last if found.n_collectives else None,
            )
            for each in kept
        ),
        note=" ".join(said),
    )


def findings(found: Job, diagnoses: Sequence[Diagnosis]) -> Table:
    """The findings of all ranks by their share of the mean time; `diagnoses` are in the order of the
    ranks."""
    titles: dict[str, str] = {}
    shares: dict[str, dict[int, float]] = {}
    for rank, told in zip(found.ranks, diagnoses, strict=True):
        for each in told.findings:
            titles[each.code] = each.title
            shares.setdefault(each.code, {})[rank.rank] = each.share or 0.0
    order = sorted(shares, key=lambda code: (-sum(shares[code].values()), code))
    return Table(
        title="Findings of the ranks",
        columns=(
            Column(name="code"),
            Column(name="finding", unit="name"),
            Column(name="ranks"),
            Column(name="largest share", unit="share"),
        ),
        rows=tuple(
            (code, titles[code], spelt(tuple(shares[code])), max(shares[code].values()))
            for code in order
        ),
    )


def spelt(numbers: Sequence[int]) -> str:
    """Rank numbers in short form: "0 to 2, 4, 6"."""
    runs: list[list[int]] = []
    for each in sorted(numbers):
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    said = [
        f"{run[0]} to {run[-1]}" if len(run) > _PAIR else ", ".join(map(str, run)) for run in runs
    ]
    return ", ".join(said[:_RUNS] + ["…"] * (len(said) > _RUNS))


_PAIR = 2
_RUNS = 8
