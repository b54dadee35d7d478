"""The report of a dry run: its steps and their predicted time."""

from peakward.records.plan import DryRun
from peakward.records.study import Column, Table
from peakward.report.columns import without_empty
from peakward.report.document import Document, Note, TableBlock
from peakward.report.format import format_duration


def document(found: DryRun) -> Document:
    """The steps in order. A column that no step fills is left out."""
    rows = tuple(
        (
            each.what,
            None if each.predicted_s is None else format_duration(each.predicted_s),
            None if each.is_stored is None else "stored" if each.is_stored else "to measure",
        )
        for each in found.steps
    )
    columns = (Column(name="step", unit="name"), Column(name="predicted"), Column(name="state"))
    table = without_empty(Table(title="", columns=columns, rows=rows))
    return Document(
        title="What would be run",
        headline=_headline(found),
        blocks=(
            *((TableBlock(table=table),) if rows else ()),
            *(Note(text=each) for each in found.left_out),
        ),
    )


def _headline(found: DryRun) -> str:
    n = len(found.steps)
    if found.budget_s is None:
        n_stored = sum(each.is_stored is True for each in found.steps)
        return f"{n} measurement{'' if n == 1 else 's'}, {n_stored} of them stored already"
    known_s = [each.predicted_s for each in found.steps if each.predicted_s is not None]
    in_all = f", {format_duration(sum(known_s))} in all" if known_s else ""
    return f"{n} steps{in_all}; the budget ends it after about {format_duration(found.budget_s)}"
