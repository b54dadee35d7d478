"""A file of the user's as bytes and as a tree, edits of it that leave all else as it is, and their diff."""

import ast
import difflib
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cached_property
from io import BytesIO
from typing import NamedTuple

from peakward.records.errors import PeakwardError

BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|$)")
"""As Python's tokenizer ends lines; git and patch end them at a line feed alone."""


class Edit(NamedTuple):
    """Bytes that take the place of those from `start` to `end`."""

    start: int
    end: int
    text: bytes


class Source:
    """A Python file that is edited.

    Args:
        path: below the working directory, with slashes; a diff names it.
        content: the file's bytes.

    Raises:
        PeakwardError: the file is no Python, or in another encoding than UTF-8, which a diff is in.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self.path, self.content = path, content
        try:
            encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
            content.decode()
            self.tree = ast.parse(content)
        except (SyntaxError, ValueError) as error:
            raise PeakwardError(
                f"expected Python in UTF-8, got {error} in {path}: convert it, or edit it by hand"
            ) from None
        if encoding not in ("utf-8", "utf-8-sig"):
            raise PeakwardError(
                f"expected Python in UTF-8, got {encoding} in {path}: convert it, or edit it by hand"
            )
        self._starts = [found.start() for found in _LINE.finditer(content)]
        if content.startswith(BOM):
            self._starts[0] = len(BOM)

    @cached_property
    def newline(self) -> bytes:
        """The end of the first line."""
        found = re.search(rb"\r\n|\n|\r", self.content)
        return b"\n" if found is None else found.group()

    @cached_property
    def indent(self) -> bytes:
        """One level of indentation: of the first block of a statement that has one."""
        for node in ast.walk(self.tree):
            body = getattr(node, "body", None)
            if isinstance(node, ast.stmt) and isinstance(body, list):
                inner, outer = self.indent_of(body[0]), self.indent_of(node)
                if len(inner) > len(outer) and inner.startswith(outer):
                    return inner[len(outer) :]
        return b"    "

    def at(self, line: int, column: int = 0) -> int:
        """The offset of a place; lines from 1, columns in bytes."""
        return self._starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The offsets of a node's first byte, and behind its last."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.at(node.lineno, node.col_offset),
            self.at(node.end_lineno, node.end_col_offset),
        )

    def text(self, node: ast.expr | ast.stmt) -> bytes:
        """The bytes of a node."""
        start, end = self.span(node)
        return self.content[start:end]

    def indent_of(self, node: ast.stmt) -> bytes:
        """The blanks before the line on which a statement begins."""
        line = self.content[self.at(node.lineno) : self.at(node.lineno, node.col_offset)]
        return line[: len(line) - len(line.lstrip(b" \t\f"))]

    def line_after(self, node: ast.stmt) -> int:
        """The offset of the line behind the one on which a statement ends."""
        assert node.end_lineno is not None
        is_last = node.end_lineno >= len(self._starts)
        return len(self.content) if is_last else self.at(node.end_lineno + 1)

    def lines(self, text: Iterable[str], indent: bytes = b"") -> bytes:
        """Lines in the file's own ends and indentation; they are given with four blanks a level."""
        return b"".join(
            (indent + self._indented(line.encode()) if line else b"") + self.newline
            for line in text
        )

    def _indented(self, line: bytes) -> bytes:
        stripped = line.lstrip(b" ")
        level, rest = divmod(len(line) - len(stripped), 4)
        return self.indent * level + b" " * rest + stripped

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """The content with edits that do not overlap; those of one place in their order."""
        parts, at = [], 0
        for each in sorted(edits, key=lambda each: (each.start, each.end)):
            assert each.start >= at
            parts += [self.content[at : each.start], each.text]
            at = each.end
        return b"".join((*parts, self.content[at:]))


def bound_names(tree: ast.Module) -> dict[str, str | None]:
    """The names that a file binds at its top, each with the import that does, or None where another
    statement does too."""
    found: dict[str, str | None] = {}
    for name, how in _bound(tree.body):
        found[name] = how if found.get(name, how) == how else None
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found.update(dict.fromkeys(node.names))
    return found


def imports_of(line: str) -> dict[str, str | None]:
    """The names that a line of imports binds."""
    return bound_names(ast.parse(line))


def _bound(body: Iterable[ast.AST]) -> Iterator[tuple[str, str | None]]:
    """Without what functions and classes bind inside."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, None
            case ast.Lambda():
                pass
            case ast.Import():
                for each in node.names:
                    whole = each.asname or each.name.partition(".")[0]
                    yield whole, f"import {each.name if each.asname else whole}"
            case ast.ImportFrom():
                for each in node.names:
                    base = "." * node.level + (node.module or "")
                    yield each.asname or each.name, f"from {base} import {each.name}"
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name, None
            case _:
                yield from _bound(ast.iter_child_nodes(node))


def with_imports(source: Source, wanted: Iterable[str]) -> tuple[Edit, ...]:
    """The edit that adds those lines of imports which the file lacks, behind its first ones.

    Raises:
        PeakwardError: a name means something else in the file.
    """
    bound, missing = bound_names(source.tree), []
    for line in dict.fromkeys(wanted):
        names = imports_of(line)
        for name, how in names.items():
            if name in bound and bound[name] != how:
                raise PeakwardError(
                    f"expected {name} in {source.path} to be that of `{line}`, got another: rename it there"
                )
        if not names.keys() <= bound.keys():
            missing.append(line)
    if not missing:
        return ()
    at = _behind_imports(source)
    before = b"" if at == 0 or source.content[at - 1 : at] in (b"\n", b"\r") else source.newline
    return (Edit(at, at, before + source.lines(missing)),)


def _behind_imports(source: Source) -> int:
    """The offset of the line behind the imports at the file's top, or behind its docstring."""
    body, at = source.tree.body, None
    for number, each in enumerate(body):
        is_import = isinstance(each, ast.Import | ast.ImportFrom)
        is_docstring = number == 0 and ast.get_docstring(source.tree) is not None
        if not (is_import or is_docstring):
            break
        shares = number + 1 < len(body) and body[number + 1].lineno == each.end_lineno
        at = at if shares else source.line_after(each)
    if at is not None:
        return at
    return source.at(first_line(body[0])) if body else len(source.content)


def first_line(node: ast.stmt) -> int:
    """The line on which a statement begins, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def unified_diff(path: str, before: bytes, after: bytes) -> bytes:
    """The diff of a file as `patch -p1` and `git apply` take it, byte for byte; empty for no change."""
    name = path + ("\t" if " " in path else "")
    parts = difflib.diff_bytes(
        difflib.unified_diff,
        _by_line_feed(before),
        _by_line_feed(after),
        f"a/{name}".encode(),
        f"b/{name}".encode(),
    )
    no_end = b"\n\\ No newline at end of file\n"
    return b"".join(part if part.endswith(b"\n") else part + no_end for part in parts)


def _by_line_feed(content: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+$", content)
