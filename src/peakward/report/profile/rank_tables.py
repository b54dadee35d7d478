"""Ranks of a job side by side."""

from peakward.records.profile import Job
from peakward.records.study import Column, Table
from peakward.report.format import format_cell
from peakward.report.profile.cells import NS


def ranks(found: Job) -> Table:
    """Who computed, who waited and who came last."""
    said = ["Clocks are aligned by the ends of collectives, which are about the same on all ranks."]
    if found.imbalance is not None:
        most = format_cell(found.imbalance, "ratio")
        said.append(f"The rank that computed most did so {most} as long as the mean of all.")
    return Table(
        title="Ranks",
        columns=(
            Column(name="rank"),
            Column(name="file", unit="name"),
            Column(name="compute", unit="s"),
            Column(name="communication", unit="s"),
            Column(name="waiting for the last rank", unit="s"),
            Column(name="last to begin", unit="count"),
            Column(name="clock moved by", unit="s"),
        ),
        rows=tuple(
            (
                str(each.rank),
                each.source,
                each.compute_ns * NS,
                each.communication_ns * NS,
                each.waited_ns * NS,
                each.n_last,
                each.offset_ns * NS,
            )
            for each in found.ranks
        ),
        note=" ".join(said),
    )
