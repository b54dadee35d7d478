"""The tables of `flash`: rates by length and arm."""

from collections.abc import Sequence

from peakward.records.study import Cell as Value
from peakward.records.study import Column, Table
from peakward.report.columns import spread_column
from peakward.report.format import format_spread
from peakward.studies.flash.grid import Cell, groups, place
from peakward.studies.readings import time, verdict


def rates(cells: Sequence[Cell]) -> tuple[Table, ...]:
    """A table for each precision, head dim and pass."""
    return tuple(_rates(group) for group in groups(cells))


def _rates(group: Sequence[Cell]) -> Table:
    return Table(
        title=f"Attention, {place(group[0])}",
        columns=(
            Column(name="length", unit="count"),
            Column(name="attention"),
            Column(name="status"),
            spread_column("time"),
            Column(name="rate", unit="flops_per_s"),
            Column(name="share of the roof", unit="share"),
            Column(name="verdict"),
            Column(name="reason"),
        ),
        rows=tuple(_row(cell) for cell in group),
    )


def _row(cell: Cell) -> tuple[Value, ...]:
    attempt, found = cell.attempt, time(cell.attempt.measurement)
    return (
        cell.seq_len,
        cell.arm.name,
        attempt.status,
        None if found is None else format_spread(found, "s"),
        None if cell.rate is None else cell.rate.estimate,
        cell.roof_share,
        verdict(attempt.measurement),
        attempt.reason,
    )
