"""The plots of `kernels`: shares by category, and the matmuls' share against the length."""

from collections.abc import Sequence

from peakward.records.case import Pass
from peakward.records.profile import CaseProfile
from peakward.records.study import Plot, Point
from peakward.studies.drawing import series
from peakward.studies.kernels.grid import INFERENCE, TRAINING, Cell, longest
from peakward.studies.kernels.shares import MATMUL, category_ns, share_of
from peakward.studies.readings import ratio

MOST_BARS = 7
"""Categories drawn; the table has all."""
NAMES: dict[Pass, str] = {INFERENCE: "inference", TRAINING: "training step"}


def plots(cells: Sequence[Cell], work: str) -> tuple[Plot, ...]:
    """For each pass the categories of each size at its longest sequence; then the matmuls' share."""
    return (*(_categories(longest(cells), each, work) for each in NAMES), _matmuls(cells, work))


def _categories(cells: Sequence[Cell], pass_: Pass, work: str) -> Plot:
    told = [
        (cell.case.model.name, _shares(cell.profile))
        for cell in cells
        if cell.profile is not None and cell.case.workload.pass_ == pass_
    ]
    totals: dict[str, float] = {}
    for _, shares in told:
        for name, share in shares.items():
            totals[name] = totals.get(name, 0.0) + share
    order = sorted(totals, key=lambda name: -totals[name])[:MOST_BARS]
    return Plot(
        title=f"{work.capitalize()} time by category, {NAMES[pass_]}",
        kind="bars",
        x_label="category",
        y_label=f"share of {work} time",
        x_unit="text",
        y_unit="share",
        series=series(
            (model, Point(x=x, y=shares[name], label=name))
            for model, shares in told
            for x, name in enumerate(order)
            if name in shares
        ),
    )


def _shares(found: CaseProfile) -> dict[str, float]:
    totals = category_ns(found.profile)
    return {name: ratio(ns, sum(totals.values())) or 0.0 for name, ns in totals.items()}


def _matmuls(cells: Sequence[Cell], work: str) -> Plot:
    return Plot(
        title=f"Share of matmuls in {work} time",
        kind="lines",
        x_label="sequence length",
        y_label=f"share of {work} time",
        x_unit="count",
        y_unit="share",
        log_x=True,
        series=series(
            (
                f"{cell.case.model.name}, {NAMES[cell.case.workload.pass_]}",
                Point(x=cell.case.workload.seq_len, y=share),
            )
            for cell in cells
            if cell.profile is not None
            and (share := share_of(MATMUL, cell.profile.profile)) is not None
        ),
    )
