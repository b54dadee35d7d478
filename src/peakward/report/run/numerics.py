"""The effect of the levers on the numbers."""

import math

from peakward.records.study import Cell, Column, Study, Table
from peakward.records.trial import NumericsError, Trial
from peakward.report.run.investigation import Investigation
from peakward.report.run.levers import base_name


def numerics_table(study: Study, read: Investigation) -> Table | None:
    """For each tried lever the error nearest its bound; None where no error was computed."""
    # A confirmed trial repeats its screening's verdict: a dict keeps one of equal rows, in order.
    rows = dict.fromkeys(row for trial in study.trials for row in _rows(trial, read))
    if not rows:
        return None
    return Table(
        title="",
        columns=(
            Column(name="lever"),
            Column(name="on"),
            Column(name="class"),
            Column(name="verdict"),
            Column(name="quantity"),
            Column(name="error", unit="count"),
            Column(name="base's error", unit="count"),
            Column(name="bound", unit="count"),
            Column(name="reason"),
        ),
        rows=tuple(rows),
        note="For each lever, the quantity whose error is nearest its bound.",
    )


def _rows(trial: Trial, read: Investigation) -> tuple[tuple[Cell, ...], ...]:
    numerics = trial.numerics
    if numerics is None:
        return ()
    worst = max(numerics.errors, key=_nearness, default=None)
    figures: tuple[Cell, ...] = (None, None, None, None)
    if worst is not None:
        figures = (worst.quantity, worst.candidate_error, worst.base_error, worst.bound)
    names = (trial.lever, base_name(trial.base, read), numerics.declared, numerics.verdict)
    return ((*names, *figures, numerics.reason),)


def _nearness(error: NumericsError) -> float:
    if error.bound == 0:
        return math.inf if error.candidate_error else 0.0
    return error.candidate_error / error.bound
