"""A table's columns: their roles (row names, sentences, figures), and their text wrapped between words.

A line ends at a space. A name wider than a line breaks behind `::`, `_`, `<`, `,` and the like.
"""

import itertools
import re
from typing import TypeGuard

import msgspec

from peakward.records.study import Cell, Column, Table
from peakward.report.format import format_beside, prefix_size

PROSE = 32
"""A text column with a longer cell is prose: it may wrap, or stand apart from its table."""
SPREAD = "% interval)"
"""The heading of a text column whose estimates each have an interval ends so."""


def spread_column(name: str, level: float = 0.95) -> Column:
    """A column for `format_spread`, of intervals at that level."""
    return Column(name=f"{name} ({100 * level:.0f}{SPREAD}")


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


def shown(table: Table) -> Table:
    """The table as a view shows it: without empty columns, unless it has no rows at all."""
    return without_empty(table) if table.rows else table


NOT_FAR = 0.1
"""A column whose largest size is at least this much of the table's largest prefix has that prefix."""


def in_one_unit(table: Table) -> Table:
    """The table with each size as text, those of a column in one prefix, that of the largest: 0.0451 GiB and
    14.2 GiB compare at a glance, as 46.2 MiB and 14.2 GiB do not. Columns whose largest values are not far
    apart have one prefix too."""
    largest = {
        index: max((abs(cell) for row in table.rows if _is_number(cell := row[index])), default=0.0)
        for index, column in enumerate(table.columns)
        if column.unit == "bytes"
    }
    if not largest:
        return table
    whole = max(largest.values())
    beside = {
        index: whole if each >= NOT_FAR * prefix_size(whole, "bytes") else each
        for index, each in largest.items()
    }
    rows = tuple(
        tuple(
            format_beside(cell, beside[index], "bytes")
            if index in beside and _is_number(cell)
            else cell
            for index, cell in enumerate(row)
        )
        for row in table.rows
    )
    return msgspec.structs.replace(table, rows=rows)


def _is_number(cell: Cell) -> TypeGuard[int | float]:
    return isinstance(cell, int | float)


def name_columns(table: Table) -> tuple[int, ...]:
    """Indices of the leading columns that identify a row: words and counts."""
    prose = prose_columns(table)
    leading = itertools.takewhile(
        lambda index: (
            table.columns[index].unit in ("text", "name", "count")
            and not table.columns[index].name.endswith(SPREAD)
            and index not in prose
        ),
        range(len(table.columns)),
    )
    return tuple(leading)


LONGEST_NAME = 120
"""The most characters of a name in a terminal. Kernels of matrix libraries have two hundred and more."""
_PART = re.compile(r"(?:[^\W_]|(?<=\d)\.(?=\d))+[\W_]*|[\W_]+")
"""A part of a word: letters and digits with a decimal point among them and the separators behind, or
separators alone."""


def parts(word: str) -> list[str]:
    """The parts of a word between which it may break. Joined they are the word."""
    return _PART.findall(word)


def longest_part(text: str) -> int:
    """The smallest width at which no part of a word breaks."""
    return max((len(part) for word in text.split(" ") for part in parts(word)), default=0)


def wrap(text: str, width: int) -> str:
    """The text in lines of at most `width`, broken at spaces, then between the parts of a wider word.

    A single part that is wider than a line breaks at the line's end.
    """
    return "\n".join(line for given in text.split("\n") for line in _lines(given, max(width, 1)))


def cut(name: str, most: int = LONGEST_NAME) -> str:
    """The name with whole parts left out of its middle where it is longer than `most`. Its ends tell more."""
    if len(name) <= most:
        return name
    pieces = parts(name)
    head, tail = "", ""
    for piece in pieces:
        if len(head) + len(piece) > most * 2 // 3:
            break
        head += piece
    for piece in reversed(pieces):
        if len(tail) + len(piece) > most // 3:
            break
        tail = piece + tail
    return f"{head}…{tail}" if head + tail else f"{name[:most]}…"


def _lines(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        whole = len(word) <= width
        for position, piece in enumerate([word] if whole else parts(word)):
            gap = " " if position == 0 and lines[-1] else ""
            if lines[-1] and len(lines[-1]) + len(gap) + len(piece) > width:
                lines.append("")
                gap = ""
            lines[-1] += gap + piece
            while len(lines[-1]) > width:
                lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return lines
