"""The tables of `attention`."""

from collections.abc import Sequence

from peakward.records.measurement import Interval
from peakward.records.study import Cell as Value
from peakward.records.study import Column, Table
from peakward.report.columns import spread_column
from peakward.report.format import format_spread
from peakward.studies.attention.grid import Cell, groups, place
from peakward.studies.attention.growth import Growth
from peakward.studies.attention.limits import End
from peakward.studies.attention_arms import Attempt
from peakward.studies.readings import time, verdict


def times(cells: Sequence[Cell]) -> tuple[Table, ...]:
    """Time and memory of every arm, a table for each precision and head dim."""
    return tuple(_times(group) for group in groups(cells))


def _times(group: Sequence[Cell]) -> Table:
    return Table(
        title=f"Attention, {place(group[0])}",
        columns=(
            Column(name="length", unit="count"),
            Column(name="attention"),
            spread_column("forward"),
            spread_column("backward"),
            Column(name="held for backward", unit="bytes"),
            Column(name="of it the probability matrix", unit="share"),
            Column(name="verdicts"),
            Column(name="reason"),
        ),
        rows=tuple(_row(cell) for cell in group),
    )


def _row(cell: Cell) -> tuple[Value, ...]:
    attempts = (cell.forward, cell.backward)
    verdicts = [found for each in attempts if (found := verdict(each.measurement)) is not None]
    reasons = [each.reason for each in attempts if each.reason is not None]
    return (
        cell.seq_len,
        cell.arm.name,
        *(_time(each) for each in attempts),
        cell.held_bytes,
        cell.matrix_share,
        ", ".join(dict.fromkeys(verdicts)) or None,
        "; ".join(dict.fromkeys(reasons)) or None,
    )


def _time(attempt: Attempt) -> str:
    found = time(attempt.measurement)
    return attempt.status if found is None else format_spread(found, "s")


def growth(grown: Sequence[Growth]) -> Table:
    """Exponents in the length."""
    return Table(
        title="Exponents in the length",
        columns=(
            Column(name="precision"),
            Column(name="head dim", unit="count"),
            Column(name="attention"),
            spread_column("forward time"),
            spread_column("backward time"),
            Column(name="held for backward"),
        ),
        rows=tuple(
            (
                each.last.precision,
                each.last.head_dim,
                each.last.arm.name,
                _power(each.forward),
                _power(each.backward),
                None if each.held is None else f"{each.held:.2f}",
            )
            for each in grown
        ),
        note="The k of c·length^k by least squares on logarithms, over all lengths that ran, the short "
        "ones included, where launches weigh most. Intervals are those of the times, not of the fit.",
    )


def _power(found: Interval | None) -> str | None:
    return None if found is None else f"{found.estimate:.2f} ({found.low:.2f} to {found.high:.2f})"


def limits(ends: Sequence[End]) -> Table:
    """Where naive attention ends."""
    return Table(
        title="Naive attention, forward and backward, under memory limits",
        columns=(
            Column(name="precision"),
            Column(name="head dim", unit="count"),
            Column(name="limit", unit="bytes"),
            Column(name="longest that fits", unit="count"),
            Column(name="shortest that does not", unit="count"),
            Column(name="status"),
            Column(name="reason"),
        ),
        rows=tuple(
            (
                each.first.precision,
                each.first.head_dim,
                each.limit_bytes,
                each.fits,
                each.fails,
                None if each.failure is None else each.failure.verdict,
                None if each.failure is None else each.failure.proof.reason,
            )
            for each in ends
        ),
        note="Of the lengths of the grid.",
    )
