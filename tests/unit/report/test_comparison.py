"""The page of a comparison."""

from peakward.records.study import Column, Table
from peakward.report import comparison, markdown
from peakward.report.document import Fact

COLUMNS = (
    Column(name="case", unit="name"),
    Column(name="after / before", unit="ratio"),
    Column(name="verdict"),
    Column(name="reason"),
)
TABLE = Table(
    title="Step times",
    columns=COLUMNS,
    rows=(
        ("quick", 1.0, "same", None),
        ("slow", 1.07, "slower", None),
        ("noisy", 1.01, "inconclusive", None),
    ),
)


def page(table=TABLE, notes=("case x is in a alone",)):
    return comparison.document(
        title="a against b",
        headline="1 regression. 2 cases compared: 1 same, 1 slower.",
        sides=(Fact(name="a", value="study 1"),),
        tables=(table,),
        notes=notes,
    )


def test_what_changed_is_open_and_the_rest_folded():
    shown = page()
    assert {section.title: section.folded for section in shown.sections} == {
        "Changed": False,
        "Inconclusive": True,
        "Unchanged": True,
        "What was compared": True,
        "Notes": True,
        "Conventions": True,
    }
    changed, untold, unchanged = (section.blocks[0].table for section in shown.sections[:3])
    assert [row[0] for row in changed.rows] == ["slow"]
    assert [row[0] for row in untold.rows] == ["noisy"]
    assert [row[0] for row in unchanged.rows] == ["quick"]
    assert [column.name for column in changed.columns] == ["case", "after / before", "verdict"]


def test_a_comment_begins_with_the_verdict_and_the_table():
    lines = [line for line in markdown.render(page()).splitlines() if line]
    assert lines[1].startswith("**1 regression. ")
    assert lines[2:6] == [
        "### Changed",
        "| case | after / before | verdict |",
        "| --- | ---: | --- |",
        "| slow | 1.07× | slower |",
    ]
    assert lines[6] == "<details>"
    assert lines[-1] == "</details>"


def test_where_nothing_changed_there_is_no_open_table():
    same = Table(title="", columns=COLUMNS, rows=TABLE.rows[:1])
    assert [section.title for section in page(same, ()).sections] == [
        "Unchanged",
        "What was compared",
        "Conventions",
    ]
