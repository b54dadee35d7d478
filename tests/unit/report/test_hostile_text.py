"""No text of any record becomes a command of a terminal, markup, or a row: by the types of all records."""

import functools
import html.parser
import importlib
import io
import itertools
import pkgutil
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

import peakward.records
from peakward.records.codec import from_json, to_json
from peakward.records.errors import printable
from peakward.records.study import Column, Study, Table
from peakward.report import html as html_view
from peakward.report import markdown, study, terminal
from peakward.report.document import Document

HOSTILE = (
    "\x1b[2J\x1b]0;t\x07\x9b31m\r\n## h\n| a | b |</td></tr></svg><script>alert(1)</script>"
    "[x](http://e)![i](http://e)<img src=x onerror=y>`c` **b** <!-- & \u202egnp\u2066\u2028\x00\x7f\\"
)
SHOWN = printable(HOSTILE)


def records() -> list[type[msgspec.Struct]]:
    """Every record that any module of the room declares."""
    modules = [
        importlib.import_module(f"peakward.records.{each.name}")
        for each in pkgutil.iter_modules(peakward.records.__path__)
    ]
    found = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ == module.__name__
        and not kind.__name__.startswith("_")
    }
    return sorted(found, key=lambda kind: kind.__name__)


@functools.cache
def samples(kind: Any, text: str) -> tuple[Any, ...]:
    """Values of a type with that text in every place of a text, and each choice of a union in one of them."""
    simple = {str: text, int: 1, float: 1.0, bool: True, type(None): None, Any: text, object: text}
    if kind in simple:
        return (simple[kind],)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return samples(arguments[0], text)
    if origin is Literal:
        return arguments
    if origin in (Union, types.UnionType):
        return tuple(each for argument in arguments for each in samples(argument, text))
    if origin is tuple and arguments[-1] is Ellipsis:
        return (one_of_each_record(samples(arguments[0], text)),)
    if origin is tuple:
        return tuple(combined([samples(each, text) for each in arguments]))
    if origin in (dict, types.MappingProxyType):
        return (dict(zip(samples(arguments[0], text), samples(arguments[1], text), strict=False)),)
    if kind is Table:
        columns = (Column(name=text), Column(name=text, unit="name"))
        return (Table(title=text, columns=columns, rows=((text, text), (None, text)), note=text),)
    hints = get_type_hints(kind, include_extras=True)
    names = kind.__struct_fields__
    rows = combined([one_of_each_record(samples(hints[name], text)) for name in names])
    return tuple(kind(**dict(zip(names, row, strict=True))) for row in rows)


def one_of_each_record(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """All values but a record's second and later ones, which are tested where it is not part of another."""
    kept: dict[Any, Any] = {}
    for n, each in enumerate(values):
        kept.setdefault(type(each) if isinstance(each, msgspec.Struct) else n, each)
    return tuple(kept.values())


def combined(columns: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """As many rows as the longest column has values, so that each value is in one."""
    longest = max(map(len, columns), default=1)
    endless = [itertools.islice(itertools.cycle(each), longest) for each in columns]
    return list(zip(*endless, strict=True)) or [()]


def texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, msgspec.Struct):
        return [text for each in msgspec.structs.astuple(value) for text in texts_of(each)]
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in texts_of(each)]
    if isinstance(value, list | tuple):
        return [text for each in value for text in texts_of(each)]
    return []


@pytest.mark.parametrize("kind", records(), ids=lambda kind: kind.__name__)
def test_every_text_of_every_record_comes_in_printable(kind: type[msgspec.Struct]) -> None:
    for hostile, plain in zip(samples(kind, HOSTILE), samples(kind, SHOWN), strict=True):
        read = from_json(to_json(hostile), kind)
        assert read == from_json(to_json(plain), kind)
        assert all(text.isprintable() for text in texts_of(read))


def test_the_types_have_texts_to_test() -> None:
    counted = [
        text for kind in records() for each in samples(kind, HOSTILE) for text in texts_of(each)
    ]
    assert len(records()) > 80
    assert counted.count(HOSTILE) > 500


class Tags(html.parser.HTMLParser):
    """The tags of a page, each with the names of its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, tuple[str, ...]]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, tuple(name for name, _ in attrs)))

    def handle_comment(self, data: str) -> None:
        self.found.add(("comment", ()))


def on_terminal(document: Document, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    terminal.render(document, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def check_views(hostile: Document, plain: Document) -> None:
    """The plain one has the same document's tags and rows, from harmless text."""
    for width in (40, 100, 300):
        assert on_terminal(hostile, width).replace("\n", "").isprintable()
    page = html_view.render(hostile)
    assert page.replace("\n", "").isprintable()
    assert Tags(page).found <= Tags(html_view.render(plain)).found
    written = markdown.render(hostile)
    assert written.replace("\n", "").isprintable()
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(written)
    inline = [inner.type for each in tokens for inner in each.children or ()]
    assert not {"html_inline", "link_open", "image", "code_inline", "em_open"} & set(inline)
    for each in tokens:
        if each.type == "html_block":
            assert Tags(each.content).found <= {("details", ()), ("summary", ())}

    def blocks(text: str) -> list[str]:
        return [each.type for each in parser.parse(text)]

    assert blocks(written) == blocks(markdown.render(plain))


def test_no_view_obeys_a_text_in_any_place_of_a_document() -> None:
    pairs = zip(samples(Document, SHOWN), samples(Document, "plain"), strict=True)
    for hostile, plain in pairs:
        check_views(hostile, plain)


def spoilt(value: Any, hint: Any) -> Any:
    """The value with the hostile text behind each of its free texts."""
    if isinstance(value, str):
        return value + HOSTILE if hint is str or str in get_args(hint) else value
    if isinstance(value, msgspec.Struct):
        hints = get_type_hints(type(value), include_extras=True)
        return msgspec.structs.replace(
            value,
            **{
                name: spoilt(getattr(value, name), hints[name])
                for name in value.__struct_fields__
                if name not in ("id", "name", "device_type")
            },
        )
    if isinstance(value, tuple):
        arguments = [each for each in _inner(hint) if each is not Ellipsis]
        inner = Union[tuple(arguments)] if arguments else Any  # noqa: UP007
        return tuple(spoilt(each, inner) for each in value)
    return value


def _inner(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is tuple:
        return get_args(hint)
    return tuple(each for one in get_args(hint) for each in _inner(one))


def test_a_stored_study_that_was_made_hostile_is_shown_as_text(bench_study: Study) -> None:
    hostile = from_json(to_json(spoilt(bench_study, Study)), Study)
    document = study.document(hostile)
    assert SHOWN in "".join(texts_of(document))
    assert all(text.isprintable() for text in texts_of(document))
    for width in (40, 100):
        assert on_terminal(document, width).replace("\n", "").isprintable()
    assert not {tag for tag, _ in Tags(html_view.render(document)).found} & {"img", "comment"}
    assert markdown.render(document).replace("\n", "").isprintable()
