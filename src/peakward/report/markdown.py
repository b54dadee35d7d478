"""The document as GitHub-flavoured Markdown, fit for a pull-request comment."""

import html
import re
from collections.abc import Iterator

from peakward.records.study import Cell, Column, Plot, Table
from peakward.report import plots
from peakward.report.columns import in_one_unit, shown
from peakward.report.document import (
    Block,
    Code,
    Command,
    Document,
    Facts,
    Figure,
    Figures,
    Items,
    Note,
    Panel,
    Paragraph,
    PlotBlock,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell, is_numeric

WIDTH = 80
"""The width of a code block that a comment shows without scrolling."""


def render(document: Document) -> str:
    """The document as Markdown. Names and reasons are escaped, so none of them becomes markup."""
    blocks = [f"## {escape(document.title)}", f"**{escape(document.headline)}**"]
    blocks += [_block(block) for block in document.blocks]
    for section in document.sections:
        blocks += _section(section)
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """The text on one line, escaped so that Markdown shows it unchanged."""
    line = " ".join(text.split())
    line = re.sub(r"([\\`*|\[\]~<>&])", r"\\\1", line)
    # Inside a word an underscore is plain; at a word's edge it would start italics.
    line = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
    line = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)
    return re.sub(r"^([#+-]+)(?=\s|$)", r"\\\1", line)


def _section(section: Section) -> Iterator[str]:
    if section.folded:
        # Markdown's escapes have no meaning inside HTML.
        yield f"<details>\n<summary>{html.escape(' '.join(section.title.split()))}</summary>"
    else:
        yield f"### {escape(section.title)}"
    yield from (_block(block) for block in section.blocks)
    if section.folded:
        yield "</details>"


def _block(block: Block) -> str:
    match block:
        case Paragraph(text=text):
            return escape(text)
        case Note(text=text):
            return f"> {escape(text)}"
        case Items(texts=texts):
            return "\n".join(f"- {escape(text)}" for text in texts)
        case Facts(facts=facts):
            return "\\\n".join(f"{escape(fact.name)}: {escape(fact.value)}" for fact in facts)
        case Figures(figures=figures):
            return _figures(figures)
        case Command(text=text):
            return _fenced(text, "sh")
        case Code(text=text, language=language):
            return _fenced(text, language)
        case TableBlock(table=table):
            return _table(table)
        case PlotBlock(plot=plot):
            return _plot(plot)
        case Panel(title=title, blocks=blocks):
            return "\n\n".join((f"### {escape(title)}", *map(_block, blocks)))


def _figures(figures: tuple[Figure, ...]) -> str:
    rows = [
        _row(escape(each.name) for each in figures),
        _row("---" for _ in figures),
        _row(f"**{escape(each.value)}**" for each in figures),
    ]
    if any(each.detail for each in figures):
        rows.append(_row(escape(each.detail or "") for each in figures))
    return "\n".join(rows)


def _table(table: Table) -> str:
    table = in_one_unit(shown(table))
    title = f"**{escape(table.title)}**\n\n" if table.title else ""
    head = _row(escape(column.name) for column in table.columns)
    rule = _row("---:" if is_numeric(column.unit) else "---" for column in table.columns)
    rows = [
        _row(_cell(cell, column) for cell, column in zip(row, table.columns, strict=True))
        for row in table.rows
    ]
    note = f"\n\n{escape(table.note)}" if table.note is not None else ""
    return title + "\n".join([head, rule, *rows]) + note


def _row(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell, column: Column) -> str:
    return escape(format_cell(cell, column.unit))


def _plot(plot: Plot) -> str:
    if (drawn := plots.drawn(plot, WIDTH)) is None:
        return _table(plots.table(plot))
    return f"**{escape(plot.title)}**\n\n" + _fenced("\n".join(drawn), "text")


def _fenced(text: str, language: str) -> str:
    """A block fenced by more backticks than any run of them inside."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
