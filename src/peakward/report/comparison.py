"""The report of `peakward compare`, short enough for a comment: verdict and changes first, the rest
folded."""

import msgspec

from peakward.records.study import Table
from peakward.report import provenance
from peakward.report.columns import without_empty
from peakward.report.document import Document, Fact, Facts, Items, Section, TableBlock

FOLDED = {"inconclusive": "Inconclusive", "same": "Unchanged"}
"""Verdicts of cases that need no reading, with the section of each."""


def document(
    *,
    title: str,
    headline: str,
    sides: tuple[Fact, ...],
    tables: tuple[Table, ...],
    notes: tuple[str, ...] = (),
) -> Document:
    """The comparison of two studies.

    `headline` is the verdict in one line. `sides` name each side's study, environment and time. `notes` say
    what could not be compared. The tables have a column "verdict": rows with a verdict in `FOLDED` are folded
    away, and so is everything below.
    """
    conventions = provenance.conventions()
    sections = (
        Section(title="Changed", blocks=_blocks(tables, None)),
        *(
            Section(title=title, blocks=_blocks(tables, verdict), folded=True)
            for verdict, title in FOLDED.items()
        ),
        Section(title="What was compared", blocks=(Facts(facts=sides),), folded=True),
        Section(title="Notes", blocks=(Items(texts=notes),) if notes else (), folded=True),
        msgspec.structs.replace(conventions, folded=True),
    )
    return Document(
        title=title,
        headline=headline,
        sections=tuple(section for section in sections if section.blocks),
    )


def _blocks(tables: tuple[Table, ...], verdict: str | None) -> tuple[TableBlock, ...]:
    found = [_rows(each, verdict) for each in tables]
    return tuple(
        TableBlock(table=without_empty(each), sortable=True) for each in found if each.rows
    )


def _rows(table: Table, verdict: str | None) -> Table:
    """The rows with that verdict; with None, the rows that are not folded."""
    place = [column.name for column in table.columns].index("verdict")
    folded = [str(row[place]) if row[place] in FOLDED else None for row in table.rows]
    rows = (row for row, of in zip(table.rows, folded, strict=True) if of == verdict)
    return msgspec.structs.replace(table, title="", rows=tuple(rows))
