"""The tables of the report."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from accuracy.records import Accuracy, Group, Reason, Refit, Replayed
from peakward.records.study import Cell, Column, Table, Unit
from peakward.report.document import TableBlock

Columns = Sequence[tuple[str, Unit]]


def table(
    title: str, columns: Columns, rows: Iterable[tuple[Cell, ...]], note: str | None = None
) -> TableBlock:
    """A table of such columns."""
    return TableBlock(
        table=Table(
            title=title,
            columns=tuple(Column(name=name, unit=unit) for name, unit in columns),
            rows=tuple(rows),
            note=note,
        )
    )


def kinds(title: str, groups: Iterable[Group]) -> TableBlock:
    """The groups of one source."""
    columns: Columns = (
        ("kind", "name"),
        ("", "name"),
        ("cases", "count"),
        ("median error", "share"),
        ("nine in ten below", "share"),
        ("worst", "share"),
        ("median signed", "share"),
        ("in interval", "share"),
    )
    row = attrgetter("kind", "value", "n", "median", "p90", "worst", "bias", "coverage")
    return table(title, columns, map(row, groups))


def worst(title: str, reasons: Sequence[Reason], cases: Sequence[Replayed]) -> TableBlock:
    """Cases with what is known of their errors."""
    columns: Columns = (
        ("case", "name"),
        ("measured", "s"),
        ("predicted", "s"),
        ("waits for", "text"),
        ("error", "share"),
        ("why", "text"),
    )
    row = attrgetter("label", "measured_s", "calibrated.step_s.estimate", "calibrated.bound")
    by_key = {each.key: each for each in cases}
    rows = ((*row(by_key[each.key]), each.error, each.reason) for each in reasons)
    return table(title, columns, rows)


def repeats(found: Accuracy) -> TableBlock:
    """How far a measurement is from itself."""
    columns: Columns = (
        ("waits for", "name"),
        ("cases", "count"),
        ("median", "share"),
        ("worst", "share"),
    )
    title = "Cases measured more than once: the longest median over the shortest, less one"
    return table(title, columns, map(attrgetter("bound", "n", "median", "worst"), found.repeats))


def sessions(found: Accuracy) -> TableBlock:
    """Each against the predictions."""
    columns: Columns = (
        ("results", "name"),
        ("wait for the host", "count"),
        ("median", "ratio"),
        ("wait for the device", "count"),
        ("median", "ratio"),
        ("board", "text"),
    )
    row = attrgetter("file", "n_host", "host_ratio", "n_device", "device_ratio", "board")
    note = "The calibration is of a session of its own, and its unit of one host."
    return table("Measured over predicted", columns, map(row, found.sessions), note)


def refit(found: Refit) -> TableBlock:
    """The models of one bound, each by what was fitted to the others."""
    columns: Columns = (
        ("left out", "name"),
        ("cases", "count"),
        ("median error as it stands", "share"),
        ("refitted", "share"),
        ("in interval as it stands", "share"),
        ("refitted", "share"),
    )
    row = attrgetter("model", "n", "median", "median_refitted", "coverage", "coverage_refitted")
    low, high = found.factors
    note = f"Fitted to all at once: factors {low:.2f} to {high:.2f}"
    if found.constants:
        units = ", ".join(f"{name} {number:.3g}" for name, number in found.constants.items())
        note += f"; units of a recorded call: {units}"
    rows = map(row, (*found.models, found.together))
    return table(f"Waiting for the {found.bound}", columns, rows, note)


def products(found: Accuracy) -> TableBlock:
    """Of matrix products."""
    columns: Columns = (
        ("operator", "name"),
        ("type", "name"),
        ("shapes", "count"),
        ("median error", "share"),
        ("nine in ten below", "share"),
        ("median signed", "share"),
    )
    row = attrgetter("operator", "compute_type", "n_shapes", "median", "p90", "bias")
    title = "Predicted time over the kernels' in stored profiles of eager steps, less one"
    return table(title, columns, map(row, found.products))


def refused(found: Accuracy) -> TableBlock:
    """What is not predicted."""
    columns: Columns = (("reason", "name"), ("measurements or cases", "count"))
    return table("", columns, map(attrgetter("reason", "n"), found.refused))


def every(cases: Sequence[Replayed]) -> TableBlock:
    """The worst first."""
    columns: Columns = (
        ("case", "name"),
        ("measured", "s"),
        ("verdict", "text"),
        ("waits for", "text"),
        ("seen", "text"),
        ("calibrated", "s"),
        ("datasheet", "s"),
        ("error", "share"),
        ("error", "share"),
    )
    row = attrgetter(
        "label",
        "measured_s",
        "verdict",
        "calibrated.bound",
        "seen",
        "calibrated.step_s.estimate",
        "datasheet.step_s.estimate",
    )
    ordered = sorted(cases, key=lambda each: -abs(each.error("calibrated")))
    rows = ((*row(each), each.error("calibrated"), each.error("datasheet")) for each in ordered)
    return table("", columns, rows)
