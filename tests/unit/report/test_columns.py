from peakward.records.study import Column, Table
from peakward.report.columns import name_columns, prose_columns, spread_column, without_empty

TABLE = Table(
    title="t",
    columns=(
        Column(name="lever"),
        Column(name="seq", unit="count"),
        Column(name="step", unit="s"),
        Column(name="empty"),
        Column(name="reason"),
    ),
    rows=(("sdpa", 128, 0.1, None, "short"), ("compile", 256, None, None, "a" * 33)),
)


def test_prose_is_a_text_column_with_a_long_cell():
    assert prose_columns(TABLE) == (4,)


def test_names_lead_up_to_the_first_measured_column():
    assert name_columns(TABLE) == (0, 1)


def test_a_column_without_any_cell_is_dropped():
    kept = without_empty(TABLE)
    assert [column.name for column in kept.columns] == ["lever", "seq", "step", "reason"]
    assert kept.rows[1] == ("compile", 256, None, "a" * 33)


def test_a_column_of_estimates_names_no_row():
    columns = (Column(name="case"), spread_column("median"), Column(name="verdict"))
    table = Table(title="", columns=columns, rows=(("a", "1.00 s (0.99–1.01 s)", "stable"),))
    assert name_columns(table) == (0,)
