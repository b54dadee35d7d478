"""Lines of torch for the model that a factory returns: a function of them, called before it is returned."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from peakward.patches.source import Edit, Source, bound_names, first_line, with_imports
from peakward.records.errors import PeakwardError

Made = Literal["module", "tuple", "object"]
"""The result of a factory: the module, a tuple that begins with it, or an object that has it as `.module`."""
NAME = "faster"
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Lines(NamedTuple):
    """Lines of a function that is given `model`."""

    imports: Sequence[str]
    body: Sequence[str]
    said: str
    """The docstring of the function that does it."""


class Place(NamedTuple):
    """The place of a factory's code, as Python tells of its code object."""

    name: str
    line: int
    """The first, which is that of its first decorator."""


def in_factory(source: Source, place: Place, made: Made, lines: Lines) -> tuple[Edit, ...]:
    """The edits that give a factory's model these lines before it is returned.

    Raises:
        PeakwardError: the factory cannot be found in the file, or returns nothing that can be told.
    """
    node, top = _found(source, place)
    name = free(source, NAME)
    if isinstance(node, ast.ClassDef):
        return (*_in_constructor(source, node, name), *defined(source, top, name, lines, "module"))
    values = [node.body] if isinstance(node, ast.Lambda) else list(_returned(node.body))
    if not values:
        raise PeakwardError(
            f"expected {place.name} in {source.path} to return the module, got no return"
        )
    firsts = [_first(each) for each in values]
    inside = made == "tuple" and all(each is not None for each in firsts)
    if inside:
        values = [each for each in firsts if each is not None]
    calls = [edit for each in values for edit in _wrapped(source, each, name)]
    given: Made = "module" if inside else made
    return (*calls, *defined(source, top, name, lines, given))


def _found(source: Source, place: Place) -> tuple[_Function | ast.ClassDef, ast.stmt]:
    """The factory, and the statement of the file's top that it is in."""
    found: list[tuple[_Function | ast.ClassDef, ast.stmt]] = []
    for top in source.tree.body:
        for node in ast.walk(top):
            match node:
                case ast.Lambda():
                    fits = (place.name, place.line) == ("<lambda>", node.lineno)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    fits = (place.name, place.line) == (node.name, first_line(node))
                case _:
                    continue
            if fits:
                found.append((node, top))
    if len(found) != 1:
        raise PeakwardError(
            f"expected {place.name} once in {source.path}:{place.line}, got it {len(found)} times: let a "
            "`def` of that file make the module"
        )
    return found[0]


def _returned(body: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """The results of a function, without those of functions inside it."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        yield from _returned(ast.iter_child_nodes(node))


def _first(value: ast.expr) -> ast.expr | None:
    """The first element of a tuple that is written out."""
    if isinstance(value, ast.Tuple) and value.elts and not isinstance(value.elts[0], ast.Starred):
        return value.elts[0]
    return None


def _wrapped(source: Source, value: ast.expr, name: str) -> tuple[Edit, Edit]:
    """A call around an expression. A tuple gets brackets of its own, or its parts were arguments."""
    start, end = source.span(value)
    bare = isinstance(
        value, ast.Tuple | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.GeneratorExp
    )
    opening, closing = (b"((", b"))") if bare else (b"(", b")")
    # As in `return[model]`.
    gap = b" " if source.content[start - 1 : start].isalnum() else b""
    return Edit(start, start, gap + name.encode() + opening), Edit(end, end, closing)


def _in_constructor(source: Source, node: ast.ClassDef, name: str) -> tuple[Edit, ...]:
    """A class is a factory by its constructor."""
    constructor = next(
        (
            each
            for each in node.body
            if isinstance(each, ast.FunctionDef) and each.name == "__init__"
        ),
        None,
    )
    if constructor is None or not constructor.args.args or any(_returns(constructor.body)):
        raise PeakwardError(
            f"expected a class {node.name} with an __init__ that runs to its end, got another in "
            f"{source.path}: let a function of that file make the module"
        )
    last = constructor.body[-1]
    at, first = source.line_after(last), constructor.args.args[0].arg
    before = b"" if source.content[at - 1 : at] in (b"\n", b"\r") else source.newline
    indent = source.indent_of(last)
    return (Edit(at, at, before + indent + f"{name}({first})".encode() + source.newline),)


def _returns(body: Iterable[ast.AST]) -> Iterator[bool]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield isinstance(node, ast.Return)
            yield from _returns(ast.iter_child_nodes(node))


def defined(
    source: Source, top: ast.stmt, name: str, lines: Lines, given: Made
) -> tuple[Edit, ...]:
    """The function before the statement that calls it, and its imports.

    Args:
        given: what it is given and returns.
    """
    has = "model" if given == "module" else "made"
    part = {"module": None, "tuple": "model = made[0]", "object": "model = made.module"}[given]
    body = ([] if part is None else [part]) + list(lines.body)
    if body[:1] and body[0].startswith("def "):
        body.insert(0, "")
    text = [
        f"def {name}({has}):",
        f'    """{lines.said}"""',
        *(f"    {line}" if line else "" for line in body),
        f"    return {has}",
        "",
        "",
    ]
    at = source.at(first_line(top))
    imports = with_imports(source, lines.imports)
    gap = ["", ""] if any(each.start == at for each in imports) else []
    return (*imports, Edit(at, at, source.lines([*gap, *text])))


def free(source: Source, name: str) -> str:
    """The name, with a number where the file uses it."""
    used = set(bound_names(source.tree))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.arg):
            used.add(node.arg)
    numbered = (f"{name}_{number}" for number in range(2, len(used) + 3))
    return name if name not in used else next(each for each in numbered if each not in used)
