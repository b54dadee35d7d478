"""Attention that a file writes out, as a call of torch's scaled_dot_product_attention.

A chain is taken where every statement of it can be shown to be part of one attention: scores, their scale, a
mask, softmax, dropout, and the product with the values, one behind the other, each of whose results is used
by the next alone. The mask must be a buffer that its class makes with `tril` or `triu` of ones. Whatever
differs is left as it is, with the reason.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from peakward.patches.causal_mask import (
    NotShownError,
    called,
    expect_causal,
    integer,
    is_module,
    mask,
)
from peakward.patches.source import Edit, Source, bound_names, with_imports

FUNCTIONAL = "torch.nn.functional"
LONGEST = 100
"""Columns of a call on one line."""


class Chain(NamedTuple):
    """The statements of one attention, and what they compute from."""

    statements: tuple[ast.Assign, ...]
    query: ast.expr
    key: ast.expr
    value: ast.expr
    scale: tuple[str, ast.expr] | None
    """`*` or `/`, and by what; None where scores are not scaled."""
    causal: bool
    dropout: ast.expr | None
    """The module that drops probabilities."""


def in_attention(source: Source) -> tuple[tuple[Edit, ...], tuple[str, ...]]:
    """The edits that replace every chain of the file, and a sentence for each attention that is left."""
    edits: list[Edit] = []
    left: list[str] = []
    imports: set[str] = set()
    for owner, function in _functions(source.tree):
        # Without a product, softmax is of a sampler.
        multiplies = any(
            _product(each) for each in ast.walk(function) if isinstance(each, ast.expr)
        )
        for body, at in _softmaxes(function) if multiplies else ():
            where = f"{source.path}:{body[at].lineno}"
            try:
                chain = _chain(owner, function, body, at)
                _expect_own_lines(source, chain)
            except NotShownError as why:
                left.append(f"Attention in {where} stays written out: {why}.")
                continue
            named, needed = _functional(source)
            imports.update(needed)
            edits += _replaced(source, chain, named)
    if imports:
        edits += with_imports(source, sorted(imports))
    return tuple(edits), tuple(left)


def _functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    """The methods of classes: a chain's dropout and mask are attributes of `self`."""
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            yield from ((owner, each) for each in owner.body if isinstance(each, ast.FunctionDef))


def _softmaxes(function: ast.FunctionDef) -> Iterator[tuple[list[ast.stmt], int]]:
    """The statements `name = softmax(name, dim=-1)`, each with its place in the block that it is in."""
    for node in ast.walk(function):
        for block in ("body", "orelse", "finalbody"):
            body = getattr(node, block, None)
            if isinstance(body, list):
                for at, each in enumerate(body):
                    if isinstance(each, ast.Assign) and _softmax(each.value) is not None:
                        yield body, at


def _chain(owner: ast.ClassDef, function: ast.FunctionDef, body: list[ast.stmt], at: int) -> Chain:
    first, causal, scale = at, False, None
    current = _softmax(_value(body[at]))
    if (masked := mask(_before(body, first, current))) is not None:
        first -= 1
        causal = True
        current, tested = masked
        expect_causal(owner, tested)
    found = _before(body, first, current)
    if (
        found is not None
        and (scaled := _scaled(found)) is not None
        and isinstance(scaled[0], ast.Name)
    ):
        first -= 1
        current, scale = scaled[0], scaled[1]
        found = _before(body, first, current)
    if found is None:
        raise NotShownError("its scores are not made by the statement before")
    first -= 1
    if (scaled := _scaled(found)) is not None and _product(found) is None:
        if scale is not None:
            raise NotShownError("its scores are scaled twice")
        found, scale = scaled
    product = _product(found)
    key = None if product is None else _transposed(product[1])
    if product is None or key is None:
        raise NotShownError("its scores are not q @ k.transpose(-2, -1)")
    if scale is not None and not _is_number(scale[1]):
        raise NotShownError("the scale of its scores is not shown to be a number")
    last, probabilities, dropout = at, _name(body[at]), None
    after = body[last + 1] if last + 1 < len(body) else None
    if isinstance(after, ast.Assign) and (dropped := _dropped(owner, after.value, probabilities)):
        last, dropout, probabilities = last + 1, dropped, _name(after)
        after = body[last + 1] if last + 1 < len(body) else None
    mixed = _product(after.value) if isinstance(after, ast.Assign) else None
    if mixed is None or not _is(mixed[0], probabilities):
        raise NotShownError(
            "its probabilities are not multiplied with the values by the statement behind"
        )
    statements = tuple(body[first : last + 2])
    _expect_unread(function, statements)
    return Chain(statements, product[0], key, mixed[1], scale, causal, dropout)  # type: ignore[arg-type]


def _value(statement: ast.stmt) -> ast.expr:
    assert isinstance(statement, ast.Assign)
    return statement.value


def _name(statement: ast.stmt) -> str:
    """The one name that a statement assigns."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case _:
            raise NotShownError("a part of it is assigned to more than a name")


def _is(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _before(body: list[ast.stmt], at: int, current: ast.expr | None) -> ast.expr | None:
    """The value of the statement before, where it assigns the current name."""
    before = body[at - 1] if at else None
    if (
        isinstance(before, ast.Assign)
        and isinstance(current, ast.Name)
        and _name(before) == current.id
    ):
        return before.value
    return None


def _softmax(node: ast.expr) -> ast.expr | None:
    """The operand of a softmax over the last dimension."""
    name, on, args, keywords = called(node)
    if name != "softmax" or on is None:
        return None
    parts = args if is_module(on) else [on, *args]
    dim = parts[1] if len(parts) == 2 else keywords.get("dim")
    alone = len(parts) + len(keywords) == 2 and isinstance(parts[0], ast.Name) if parts else False
    return parts[0] if alone and dim is not None and integer(dim) == -1 else None


def _scaled(node: ast.expr) -> tuple[ast.expr, tuple[str, ast.expr]] | None:
    match node:
        case ast.BinOp(left=scores, op=ast.Mult(), right=by):
            return scores, ("*", by)
        case ast.BinOp(left=scores, op=ast.Div(), right=by):
            return scores, ("/", by)
        case _:
            return None


def _product(node: ast.expr | None) -> tuple[ast.expr, ast.expr] | None:
    """The two sides of a matrix product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    name, on, args, keywords = called(node)
    if name != "matmul" or keywords or on is None:
        return None
    parts = args if is_module(on) else [on, *args]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _transposed(node: ast.expr) -> ast.expr | None:
    """The keys of which this is the transpose over the last two dimensions."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value
    name, on, args, _ = called(node)
    dims = [integer(each) for each in args]
    return on if name == "transpose" and dims in ([-2, -1], [-1, -2]) else None


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is made of numbers, sizes and roots, or an attribute: what is no number after
    all, torch refuses as a scale."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float)
        case ast.Name() | ast.Attribute():
            return True
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case (
            ast.Call(func=ast.Attribute(attr="size" | "sqrt"))
            | ast.Call(func=ast.Name(id="sqrt" | "float"))
        ):
            return all(_is_number(each) for each in node.args)
        case _:
            return False


def _dropped(owner: ast.ClassDef, node: ast.expr, probabilities: str) -> ast.expr | None:
    """The nn.Dropout that is called on the probabilities, where the class makes it."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="self"), attr=name) as module,
            args=[ast.Name(id=given)],
            keywords=[],
        ) if given == probabilities:
            pass
        case _:
            return None
    made = [
        each.value
        for each in ast.walk(owner)
        if isinstance(each, ast.Assign)
        and any(isinstance(to, ast.Attribute) and to.attr == name for to in each.targets)
    ]
    is_dropout = (
        len(made) == 1
        and isinstance(made[0], ast.Call)
        and ast.unparse(made[0].func)
        in (
            "nn.Dropout",
            "torch.nn.Dropout",
            "Dropout",
        )
    )
    if not is_dropout:
        raise NotShownError(f"self.{name} is not shown to be nn.Dropout")
    return module


def _expect_unread(function: ast.FunctionDef, statements: tuple[ast.stmt, ...]) -> None:
    """Shows that nothing else reads scores or probabilities."""
    names = {_name(each) for each in statements[:-1]}
    inside = {id(node) for each in statements for node in ast.walk(each)}
    last = _name(statements[-1])
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in names - {last} and id(node) not in inside:
            raise NotShownError(f"{node.id} is used elsewhere in {function.name} too")


def _expect_own_lines(source: Source, chain: Chain) -> None:
    """Shows that nothing else stands on the lines of a chain."""
    for each in chain.statements:
        start, end = source.span(each)
        before = source.content[source.at(each.lineno) : start]
        behind = source.content[end : source.line_after(each)].strip()
        if before.strip() or (behind and not behind.startswith(b"#")):
            raise NotShownError("it shares a line with another statement")


def _functional(source: Source) -> tuple[str, tuple[str, ...]]:
    """The file's name for torch.nn.functional, and the imports that it lacks for it."""
    for name, how in bound_names(source.tree).items():
        if how in (f"import {FUNCTIONAL}", "from torch.nn import functional"):
            return name, ()
    return FUNCTIONAL, ("import torch",)


def _replaced(source: Source, chain: Chain, functional: str) -> Iterator[Edit]:
    """The call in the place of the last statement; the lines of the others go, comments between them stay."""

    def text(node: ast.expr) -> str:
        return source.text(node).decode()

    given = [text(each) for each in (chain.query, chain.key, chain.value)]
    if chain.causal:
        given.append("is_causal=True")
    if chain.dropout is not None:
        module = text(chain.dropout)
        given.append(f"dropout_p={module}.p if {module}.training else 0.0")
    match chain.scale:
        case None:
            given.append("scale=1.0")
        case ("/", by):
            given.append(f"scale=1.0 / ({text(by)})")
        case (_, by):
            given.append(f"scale={text(by)}")
    *others, last = chain.statements
    call = f"{functional}.scaled_dot_product_attention"
    start, end = source.span(last.value)
    indent = source.indent_of(last)
    if (
        "\n" not in "".join(given)
        and len(indent) + len(call) + sum(len(each) + 2 for each in given) < LONGEST - 10
    ):
        made = f"{call}({', '.join(given)})".encode()
    else:
        lines = source.lines([f"    {each}," for each in given], indent)
        made = f"{call}(".encode() + source.newline + lines + indent + b")"
    yield Edit(start, end, made)
    for each in others:
        yield Edit(source.at(each.lineno), source.line_after(each), b"")
