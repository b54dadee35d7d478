"""The section on larger batches, for runs that seek tokens/s."""

from peakward.records.study import Study
from peakward.report.document import Items, Section, TableBlock

TITLE = "Throughput by batch size"
"""The title of the table in such a study."""


def section(study: Study) -> Section:
    """The table of batches; empty where none was measured."""
    tables = [table for table in study.tables if table.title == TITLE]
    said = tuple(each.text for each in study.conclusions) if tables else ()
    blocks = (
        *(TableBlock(table=table) for table in tables),
        *((Items(texts=said),) if said else ()),
    )
    return Section(title="Larger batches", blocks=blocks)
