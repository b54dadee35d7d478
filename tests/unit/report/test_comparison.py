from peakward.records.study import Column, Table
from peakward.report import comparison
from peakward.report.document import Fact, TableBlock

TABLE = Table(title="Cases", columns=(Column(name="b over a", unit="ratio"),), rows=((1.07,),))


def test_verdict_sides_tables_and_notes():
    shown = comparison.document(
        title="a against b",
        headline="1 of 1 cases slower",
        sides=(Fact(name="a", value="study 1"),),
        tables=(TABLE,),
        notes=("case x is in a alone",),
    )
    assert shown.headline == "1 of 1 cases slower"
    assert shown.sections[0].blocks == (TableBlock(table=TABLE, sortable=True),)
    assert [section.title for section in shown.sections] == ["Comparison", "Notes", "Conventions"]
