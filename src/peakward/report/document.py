"""The one document tree that the terminal, Markdown and HTML views show.

Its leaves hold numbers in stored units, or text already composed from them; a view only lays
them out. No view is imported here, so building a document needs neither rich nor jinja2.
"""

import msgspec

from peakward.records.study import Plot, Table


class Paragraph(msgspec.Struct, frozen=True, kw_only=True, tag="paragraph"):
    """Running text."""

    text: str


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """What the reader must know before trusting the rest."""

    text: str


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A name and its value."""

    name: str
    value: str


class Facts(msgspec.Struct, frozen=True, kw_only=True, tag="facts"):
    """Names and values, one a line."""

    facts: tuple[Fact, ...]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A number worth large type: what it is, itself, and what it stands on."""

    name: str
    value: str
    detail: str | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True, tag="figures"):
    """The few numbers to read first."""

    figures: tuple[Figure, ...]


class Items(msgspec.Struct, frozen=True, kw_only=True, tag="items"):
    """Sentences, one a bullet."""

    texts: tuple[str, ...]


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """Text to be copied to a shell, verbatim."""

    text: str


class Code(msgspec.Struct, frozen=True, kw_only=True, tag="code"):
    """Lines of Python to be copied into a program, verbatim."""

    text: str


class TableBlock(msgspec.Struct, frozen=True, kw_only=True, tag="table"):
    """A table; `sortable` ones let a reader of the page order the rows."""

    table: Table
    sortable: bool = False


class PlotBlock(msgspec.Struct, frozen=True, kw_only=True, tag="plot"):
    """A drawing."""

    plot: Plot


Block = Paragraph | Note | Facts | Figures | Items | Command | Code | TableBlock | PlotBlock


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks under a heading; a `folded` one is reference matter, closed where a view can close it."""

    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report: a title, what to read first, then sections."""

    title: str
    headline: str
    """One line that could be forwarded alone."""
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()
