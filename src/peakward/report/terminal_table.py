"""A table in a terminal: a grid where it fits, else with its prose below, else row by row."""

from collections.abc import Iterator, Sequence
from typing import Literal

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from peakward.records.study import Cell, Column, Table
from peakward.report.columns import name_columns, prose_columns
from peakward.report.format import format_cell, is_numeric
from peakward.report.tones import tone

STYLES = {"good": "green", "bad": "red", "doubtful": "yellow", "muted": "dim"}
GAP = 2
NARROWEST_PROSE = 28


def lay_out(table: Table, width: int) -> Iterator[RenderableType]:
    """The table's title, body and note, in lines of at most `width`."""
    if table.title:
        yield Text(table.title, style="bold")
    note = () if table.note is None else (Text(table.note, style="dim"),)
    everything = range(len(table.columns))
    prose = prose_columns(table)
    short = [index for index in everything if index not in prose]
    if (widths := _widths(table, everything, width)) is not None:
        yield from (_grid(table, everything, widths), *note)
    elif (widths := _widths(table, short, width)) is not None:
        yield from (_grid(table, short, widths), *note, Text(), *_below(table, prose))
    elif (pieces := _pieces(table, short, width)) is not None:
        for number, columns in enumerate(pieces):
            gap = (Text(),) if number else ()
            yield from (*gap, _grid(table, columns, _widths(table, columns, width) or ()))
        yield from (*note, Text(), *_below(table, prose)) if prose else note
    else:
        yield from (*_row_by_row(table), *note)


def hanging(mark: RenderableType, body: RenderableType) -> Grid:
    """A mark, and text beside it that wraps under itself."""
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(mark, body)
    return grid


def _widths(table: Table, columns: Sequence[int], width: int) -> list[int] | None:
    """A width for each column, or None where even the narrowest do not fit."""
    narrowest = [_narrowest(table, index) for index in columns]
    left = width - sum(narrowest) - GAP * (len(columns) - 1)
    if left < 0:
        return None
    widths = narrowest
    wanted = [max(_lengths(table, index), default=0) for index in columns]
    for position in sorted(range(len(columns)), key=lambda at: wanted[at] - narrowest[at]):
        given = min(left, wanted[position] - widths[position])
        widths[position] += given
        left -= given
    return widths


def _pieces(table: Table, columns: Sequence[int], width: int) -> list[list[int]] | None:
    """The columns in several grids that each begin with the row's names, or None where not even that fits."""
    names = [index for index in name_columns(table) if index in columns]
    pieces = [list(names)]
    for index in columns[len(names) :]:
        if _widths(table, [*pieces[-1], index], width) is None:
            pieces.append(list(names))
        pieces[-1].append(index)
    fit = all(_widths(table, piece, width) is not None for piece in pieces)
    return pieces if fit else None


def _narrowest(table: Table, index: int) -> int:
    """Cells are kept whole, headings between their words, names and prose within reason."""
    head = max((len(word) for word in table.columns[index].name.split()), default=0)
    if table.columns[index].unit == "name":
        return min(max(head, *_lengths(table, index), 1), NARROWEST_PROSE)
    if index in prose_columns(table):
        return max(head, NARROWEST_PROSE)
    return max(head, *_lengths(table, index)[1:], 1)


def _lengths(table: Table, index: int) -> list[int]:
    unit = table.columns[index].unit
    cells = [len(format_cell(row[index], unit)) for row in table.rows]
    return [len(table.columns[index].name), *cells]


def _grid(table: Table, columns: Sequence[int], widths: Sequence[int]) -> Grid:
    grid = Grid(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),
        header_style="bold",
    )
    for index, width in zip(columns, widths, strict=True):
        column = table.columns[index]
        justify: Literal["left", "right"] = "right" if is_numeric(column.unit) else "left"
        grid.add_column(
            Text(column.name), width=width, justify=justify, overflow="fold", vertical="top"
        )
    for row in table.rows:
        grid.add_row(*(_cell(row[index], table.columns[index]) for index in columns))
    return grid


def _cell(cell: Cell, column: Column) -> Text:
    text = format_cell(cell, column.unit)
    mood = tone(cell)
    return Text(text, style=STYLES[mood] if mood else "dim" if cell is None else "")


def _below(table: Table, prose: Sequence[int]) -> Iterator[RenderableType]:
    """The prose of the rows, once for all rows that share it, after their names."""
    names = [index for index in name_columns(table)[:2] if index == 0 or _varies(table, index)]
    said: dict[str, list[str]] = {}
    for row in table.rows:
        words = "; ".join(str(row[index]) for index in prose if row[index] is not None)
        parts = [str(row[index]) for index in names if row[index] is not None]
        if words:
            said.setdefault(words, []).append(_name(parts))
    for words, rows in said.items():
        named = ", ".join(name for name in rows if name)
        yield hanging(Text("-"), Text(f"{named}: {words}" if named else words))


def _name(parts: Sequence[str]) -> str:
    """The first, and the second in brackets."""
    first, *second = parts or ("",)
    return f"{first} ({second[0]})" if second else first


def _varies(table: Table, index: int) -> bool:
    return len({row[index] for row in table.rows}) > 1


def _row_by_row(table: Table) -> Iterator[RenderableType]:
    """Every row as its first cell, then "heading value" pairs."""
    for row in table.rows:
        pairs = zip(table.columns[1:], row[1:], strict=True)
        said = ", ".join(
            f"{column.name} {format_cell(cell, column.unit)}"
            for column, cell in pairs
            if cell is not None
        )
        yield Text(format_cell(row[0], table.columns[0].unit), style="bold")
        yield Padding(Text(said), (0, 0, 0, 2))
