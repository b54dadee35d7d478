"""The document tree that the terminal, Markdown and HTML views show.

Leaves hold numbers in stored units, or finished text; a view only lays them out. This module imports no view,
so building a document needs neither rich nor jinja2.
"""

from typing import Literal

import msgspec

from peakward.records.study import Plot, Table


class Paragraph(msgspec.Struct, frozen=True, kw_only=True, tag="paragraph"):
    """Running text."""

    text: str


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """A warning that the reader needs before trusting the rest."""

    text: str


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A name and its value."""

    name: str
    value: str


class Facts(msgspec.Struct, frozen=True, kw_only=True, tag="facts"):
    """Names and values, one a line."""

    facts: tuple[Fact, ...]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A number in large type: its name, its value, and a detail about its basis."""

    name: str
    value: str
    detail: str | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True, tag="figures"):
    """The few numbers to read first."""

    figures: tuple[Figure, ...]


class Items(msgspec.Struct, frozen=True, kw_only=True, tag="items"):
    """Sentences, one for each bullet."""

    texts: tuple[str, ...]


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """A shell command, copied verbatim."""

    text: str


class Code(msgspec.Struct, frozen=True, kw_only=True, tag="code"):
    """Lines that are shown as they are: Python to copy into a program, a diff, or a text of a model."""

    text: str
    language: Literal["python", "diff", "text"] = "python"


class TableBlock(msgspec.Struct, frozen=True, kw_only=True, tag="table"):
    """A table. Readers of the HTML page can reorder the rows of a `sortable` one."""

    table: Table
    sortable: bool = False


class PlotBlock(msgspec.Struct, frozen=True, kw_only=True, tag="plot"):
    """A drawing."""

    plot: Plot


Leaf = Paragraph | Note | Facts | Figures | Items | Command | Code | TableBlock | PlotBlock


class Panel(msgspec.Struct, frozen=True, kw_only=True, tag="panel"):
    """The part that a reader came for, under a title of its own and set off from the rest."""

    title: str
    blocks: tuple[Leaf, ...]


Block = Leaf | Panel


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks under a heading. A `folded` section is reference material, closed where the view can close
    it."""

    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report: a title, an opening, then sections."""

    title: str
    headline: str
    """One line that could be forwarded alone."""
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()
