"""The roles of a table's columns: row names, sentences, figures."""

import itertools

import msgspec

from peakward.records.study import Column, Table

PROSE = 32
"""A text column with a longer cell is prose: it may wrap, or stand apart from its table."""


SPREAD = "95% interval"
"""The heading of a text column whose estimates each have an interval contains this."""


def spread_column(name: str) -> Column:
    """A column for `format_spread`."""
    return Column(name=f"{name} ({SPREAD})")


def prose_columns(table: Table) -> tuple[int, ...]:
    """Indices of the text columns that hold sentences."""
    return tuple(
        index
        for index, column in enumerate(table.columns)
        if column.unit == "text" and any(len(str(row[index])) > PROSE for row in table.rows)
    )


def without_empty(table: Table) -> Table:
    """The table without columns that are empty in every row."""
    filled = [
        index
        for index in range(len(table.columns))
        if any(row[index] is not None for row in table.rows)
    ]
    return msgspec.structs.replace(
        table,
        columns=tuple(table.columns[index] for index in filled),
        rows=tuple(tuple(row[index] for index in filled) for row in table.rows),
    )


def name_columns(table: Table) -> tuple[int, ...]:
    """Indices of the leading columns that identify a row: words and counts."""
    prose = prose_columns(table)
    leading = itertools.takewhile(
        lambda index: (
            table.columns[index].unit in ("text", "name", "count")
            and SPREAD not in table.columns[index].name
            and index not in prose
        ),
        range(len(table.columns)),
    )
    return tuple(leading)
