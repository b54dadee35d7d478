"""The document in a terminal: lines of the console's width, coloured where possible.

A table is one grid where it fits, else prose below it, else row by row.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from peakward.records.study import Cell, Column, Plot, Table
from peakward.report import plots
from peakward.report.columns import (
    cut,
    in_one_unit,
    longest_part,
    name_columns,
    prose_columns,
    shown,
    wrap,
)
from peakward.report.document import (
    Block,
    Code,
    Command,
    Document,
    Facts,
    Figures,
    Items,
    Note,
    Panel,
    Paragraph,
    PlotBlock,
    TableBlock,
)
from peakward.report.format import format_cell, is_numeric, tone


def render(document: Document, console: Console) -> None:
    """Print the document; no line is longer than the console is wide."""
    _print(console, Text(document.title, style="bold"), Text(document.headline))
    for block in document.blocks:
        _print(console, Text(), *_block(block, console.width))
    for section in document.sections:
        _print(console, Text(), Text(section.title.upper(), style="bold cyan"))
        for block in section.blocks:
            _print(console, Text(), *_block(block, console.width))


def _print(console: Console, *renderables: RenderableType) -> None:
    for each in renderables:
        console.print(each, highlight=False, markup=False, emoji=False)


def _block(block: Block, width: int) -> Iterator[RenderableType]:
    match block:
        case Paragraph(text=text):
            yield Text(text)
        case Note(text=text):
            yield hanging(Text("!", style="bold yellow"), Text(text, style="yellow"))
        case Items(texts=texts):
            yield from (hanging(Text("-"), Text(text)) for text in texts)
        case Facts(facts=facts):
            yield _rows((fact.name, fact.value) for fact in facts)
        case Figures(figures=figures):
            yield _rows((each.name, each.value, each.detail or "") for each in figures)
        case Command(text=text):
            for line in shell_lines(text, width - 2):
                yield Padding(Text(line, style="bold", overflow="fold"), (0, 0, 0, 2))
        case Code(text=text):
            yield Padding(Text(text, overflow="fold"), (0, 0, 0, 2))
        case TableBlock(table=table):
            yield from lay_out(table, width)
        case PlotBlock(plot=plot):
            yield from _plot(plot, width)
        case Panel(title=title, blocks=blocks):
            yield Text(title.upper(), style="bold reverse")
            for each in blocks:
                yield Text()
                yield from _block(each, width)


def _rows(rows: Iterator[tuple[str, ...]]) -> Grid:
    """A dim name, then its value and its detail."""
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for name, value, *rest in rows:
        grid.add_row(Text(name, style="dim"), Text(value), *map(Text, rest))
    return grid


def _plot(plot: Plot, width: int) -> Iterator[RenderableType]:
    if (drawn := plots.drawn(plot, width)) is None:
        yield from lay_out(plots.table(plot), width)
        return
    yield Text(plot.title, style="bold")
    yield from (Text(line, no_wrap=True) for line in drawn)


def shell_lines(command: str, width: int) -> tuple[str, ...]:
    """The command broken before its options, with backslashes. It stays whole where a quote might span a
    break."""
    if len(command) <= width or re.search("[\"'\\\\]", command):
        return (command,)
    first, *options = re.split(" (?=--)", command)
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) + 3 <= width:
            lines[-1] += f" {option}"
        else:
            lines.append(f"    {option}")
    return (*(f"{line} \\" for line in lines[:-1]), lines[-1])


STYLES = {"good": "green", "bad": "red", "doubtful": "yellow", "muted": "dim"}
GAP = 2
NARROWEST_PROSE = 28


def lay_out(table: Table, width: int) -> Iterator[RenderableType]:
    """The table's title, body and note, in lines of at most `width`. Every heading is shown."""
    table = _with_cut_names(in_one_unit(shown(table)))
    if table.title:
        yield Text(wrap(table.title, width), style="bold")
    note = () if table.note is None else (Text(wrap(table.note, width), style="dim"),)
    everything = range(len(table.columns))
    prose = prose_columns(table)
    short = [index for index in everything if index not in prose]
    below = (Text(), *_below(table, prose, width)) if prose else ()
    if (widths := _widths(table, everything, width)) is not None:
        yield from (_grid(table, everything, widths), *note)
    elif (widths := _widths(table, short, width)) is not None:
        yield from (_grid(table, short, widths), *note, *below)
    elif (pieces := _pieces(table, short, width)) is not None:
        for number, columns in enumerate(pieces):
            gap = (Text(),) if number else ()
            yield from (*gap, _grid(table, columns, _widths(table, columns, width) or ()))
        yield from (*note, *below)
    else:
        yield from (*_row_by_row(table, width), *note)


def _with_cut_names(table: Table) -> Table:
    """The table with long names cut to a screen's width."""
    is_name = [column.unit == "name" for column in table.columns]
    rows = tuple(
        tuple(
            cut(cell) if named and isinstance(cell, str) else cell
            for cell, named in zip(row, is_name, strict=True)
        )
        for row in table.rows
    )
    return msgspec.structs.replace(table, rows=rows)


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
    """The columns split into several grids, or None where even that does not fit.

    Each grid begins with the names that tell the rows apart. Within that, there are as few grids as possible.
    """
    names = [index for index in name_columns(table) if index in columns]
    found = [_split(table, columns, n, width) for n in range(1, len(names) + 1)]
    fitting = [pieces for pieces in found if pieces is not None]
    if not fitting:
        return None
    most = max(_n_told_apart(table, pieces) for pieces in fitting)
    return min((each for each in fitting if _n_told_apart(table, each) == most), key=len)


def _split(
    table: Table, columns: Sequence[int], n_names: int, width: int
) -> list[list[int]] | None:
    """The columns over grids that each begin with the first of them, or None where one does not fit."""
    pieces = [list(columns[:n_names])]
    for index in columns[n_names:]:
        if _widths(table, [*pieces[-1], index], width) is None:
            pieces.append(list(columns[:n_names]))
        pieces[-1].append(index)
    fit = all(_widths(table, piece, width) is not None for piece in pieces)
    return pieces if fit else None


def _n_told_apart(table: Table, pieces: Sequence[Sequence[int]]) -> int:
    """The number of rows that the names at each grid's start tell apart."""
    names = [index for index in pieces[0] if all(index in piece for piece in pieces)]
    return len({tuple(row[index] for index in names) for row in table.rows})


def _narrowest(table: Table, index: int) -> int:
    """The least width of a column: cells stay whole, headings break between words, names and prose within
    reason."""
    head = max((len(word) for word in table.columns[index].name.split()), default=0)
    if table.columns[index].unit == "name":
        short = min(max(head, *_lengths(table, index), 1), NARROWEST_PROSE)
        return max(short, _longest_part(table, index))
    if index in prose_columns(table):
        return max(head, NARROWEST_PROSE, _longest_part(table, index))
    return max(head, *_lengths(table, index)[1:], 1)


def _longest_part(table: Table, index: int) -> int:
    unit = table.columns[index].unit
    return max((longest_part(format_cell(row[index], unit)) for row in table.rows), default=0)


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
            Text(wrap(column.name, width)),
            width=width,
            justify=justify,
            overflow="fold",
            vertical="top",
        )
    for row in table.rows:
        grid.add_row(
            *(
                _cell(row[index], table.columns[index], width)
                for index, width in zip(columns, widths, strict=True)
            )
        )
    return grid


def _cell(cell: Cell, column: Column, width: int) -> Text:
    text = wrap(format_cell(cell, column.unit), width)
    mood = tone(cell)
    return Text(text, style=STYLES[mood] if mood else "dim" if cell is None else "")


def _below(table: Table, prose: Sequence[int], width: int) -> Iterator[RenderableType]:
    """The prose of the rows under its heading. Rows that share it are named together."""
    names = [index for index in name_columns(table)[:2] if index == 0 or _varies(table, index)]
    said: dict[str, list[str]] = {}
    for row in table.rows:
        words = "; ".join(str(row[index]) for index in prose if row[index] is not None)
        parts = [
            format_cell(row[index], table.columns[index].unit)
            for index in names
            if row[index] is not None
        ]
        if words:
            said.setdefault(words, []).append(_name(parts))
    headings = "; ".join(table.columns[index].name for index in prose)
    yield Text(wrap(headings, width), style="bold")
    for words, rows in said.items():
        named = ", ".join(name for name in rows if name)
        text = f"{named}: {words}" if named else words
        yield hanging(Text("-"), Text(wrap(text, width - 2)))


def _name(parts: Sequence[str]) -> str:
    """The first part, and the second in brackets."""
    first, *second = parts or ("",)
    return f"{first} ({second[0]})" if second else first


def _varies(table: Table, index: int) -> bool:
    return len({row[index] for row in table.rows}) > 1


def _row_by_row(table: Table, width: int) -> Iterator[RenderableType]:
    """Every row as its first cell, then "heading value" pairs. Headings without a value in the row are left
    out."""
    first, *others = table.columns
    for row in table.rows:
        said = ", ".join(
            f"{column.name} {format_cell(cell, column.unit)}"
            for index, (column, cell) in enumerate(zip(others, row[1:], strict=True), start=1)
            if cell is not None or not _has_any(table, index)
        )
        name = f"{first.name} {format_cell(row[0], first.unit)}".lstrip()
        yield Text(wrap(name, width), style="bold")
        if said:
            yield Padding(Text(wrap(said, width - 2)), (0, 0, 0, 2))


def _has_any(table: Table, index: int) -> bool:
    return any(row[index] is not None for row in table.rows)
