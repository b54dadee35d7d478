"""The report of `peakward compare`: tables that the comparison computed, under its verdict."""

from peakward.records.study import Table
from peakward.report import provenance
from peakward.report.document import Document, Fact, Facts, Items, Section, TableBlock


def document(
    *,
    title: str,
    headline: str,
    sides: tuple[Fact, ...],
    tables: tuple[Table, ...],
    notes: tuple[str, ...] = (),
) -> Document:
    """Two studies beside each other.

    `headline` is the verdict in one line; `sides` name what stands on each side of it (study,
    environment, time); `notes` say what could not be compared.
    """
    sections = (
        Section(
            title="Comparison",
            blocks=tuple(TableBlock(table=each, sortable=True) for each in tables),
        ),
        Section(title="Notes", blocks=(Items(texts=notes),) if notes else ()),
        provenance.conventions(),
    )
    return Document(
        title=title,
        headline=headline,
        blocks=(Facts(facts=sides),),
        sections=tuple(section for section in sections if section.blocks),
    )
