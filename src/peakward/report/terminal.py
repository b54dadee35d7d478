"""The document in a terminal: lines of the console's width, coloured where possible."""

import re
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from peakward.records.study import Plot
from peakward.report import plot_text
from peakward.report.document import (
    Block,
    Code,
    Command,
    Document,
    Facts,
    Figures,
    Items,
    Note,
    Paragraph,
    PlotBlock,
    TableBlock,
)
from peakward.report.terminal_table import hanging, lay_out


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


def _rows(rows: Iterator[tuple[str, ...]]) -> Grid:
    """A dim name, then its value and its detail."""
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for name, value, *rest in rows:
        grid.add_row(Text(name, style="dim"), Text(value), *map(Text, rest))
    return grid


def _plot(plot: Plot, width: int) -> Iterator[RenderableType]:
    if plot.kind != "bars":
        yield from lay_out(plot_text.table(plot), width)
        return
    yield Text(plot.title, style="bold")
    yield from (Text(line, no_wrap=True) for line in plot_text.bars(plot, width))


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
