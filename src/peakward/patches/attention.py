"""Attention that a file writes out, as a call of torch's scaled_dot_product_attention.

A chain is taken where every part of it can be shown to be of one attention: scores, their scale, a mask,
softmax, dropout, and the product with the values, each of whose results is used by the next alone. They are
statements one behind the other, or parts of one expression. The mask must be made with `tril` or `triu` of
ones, as a buffer of the class or in the function. Whatever differs is left as it is, with the reason.
"""

import ast
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from peakward.patches.causal_mask import (
    NotShownError,
    assigned,
    called,
    expect_all_keys,
    expect_causal,
    integer,
    is_module,
    mask,
    triangle,
)
from peakward.patches.source import Edit, Source, bound_names, with_imports

FUNCTIONAL = "torch.nn.functional"
SIMPLE = (ast.Assign, ast.Return, ast.AugAssign, ast.Expr)
"""Statements in which an attention may end."""
SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NUMBERS = ("size", "sqrt", "pow", "float", "int", "len", "min", "max", "getattr")
"""Functions whose results are taken for numbers."""
LONGEST = 100
"""Columns of a call on one line."""


class Method(NamedTuple):
    """A function of a class, in its file."""

    tree: ast.Module
    owner: ast.ClassDef
    function: ast.FunctionDef


class Chain(NamedTuple):
    """The parts of one attention, and what it computes from."""

    statements: tuple[ast.Assign, ...]
    """Those that go, in their order."""
    last: ast.stmt
    """The one with the product, which stays."""
    product: ast.expr
    """The product with the values, in whose place the call comes."""
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
    for method in _methods(source.tree):
        function = method.function
        # Without a product, softmax is of a sampler.
        multiplies = any(
            _product(each) for each in ast.walk(function) if isinstance(each, ast.expr)
        )
        for body, at, softmax in _softmaxes(function) if multiplies else ():
            where = f"{source.path}:{softmax.lineno}"
            try:
                chain = _chain(method, body, at, softmax)
                _expect_own_lines(source, chain)
            except NotShownError as why:
                left.append(f"Attention in {where} stays written out: {why}.")
                continue
            named, needed = _functional(source, function)
            made = tuple(_replaced(source, chain, named))
            if any(one.start < each.end and each.start < one.end for one in made for each in edits):
                left.append(f"Attention in {where} stays written out: it is a part of another.")
                continue
            imports.update(needed)
            edits += made
    if imports:
        edits += with_imports(source, sorted(imports))
    return tuple(edits), tuple(left)


def _methods(tree: ast.Module) -> Iterator[Method]:
    """The methods of classes: a chain's dropout and mask are attributes of `self`."""
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            functions = (each for each in owner.body if isinstance(each, ast.FunctionDef))
            yield from (Method(tree, owner, each) for each in functions)


def _softmaxes(function: ast.FunctionDef) -> Iterator[tuple[list[ast.stmt], int, ast.expr]]:
    """The softmaxes over the last dimension, each with the block and the place in it of its statement."""
    for node in ast.walk(function):
        for block in ("body", "orelse", "finalbody"):
            body: list[ast.stmt] = getattr(node, block, [])
            for at, each in enumerate(body if isinstance(body, list) else ()):
                if isinstance(each, SIMPLE):
                    inside = (part for part in ast.walk(each) if isinstance(part, ast.expr))
                    yield from ((body, at, part) for part in inside if _softmax(part) is not None)


def _chain(
    method: Method,
    body: list[ast.stmt],
    at: int,
    softmax: ast.expr,
) -> Chain:
    tree, owner, function = method
    made, first = _made(body, at, _softmax(softmax))
    causal, scale, masks = False, None, set[str]()
    if (masked := mask(made)) is not None:
        causal, (current, condition) = True, masked
        masks = expect_causal(owner, function, condition)
        made, first = _made(body, first, current)
    if _product(made) is None and (scaled := _scaled(made)) is not None:
        current, scale = scaled
        made, first = _made(body, first, current)
        if _product(made) is None and _scaled(made) is not None:
            raise NotShownError("its scores are scaled twice")
    product = _product(made)
    key = None if product is None else _transposed(product[1])
    if product is None or key is None:
        raise NotShownError("its scores are not q @ k.transpose(-2, -1)")
    if causal:
        expect_all_keys(function, key)
    if scale is not None and not _is_number(scale[1], owner, function):
        raise NotShownError("the scale of its scores is not shown to be a number")
    dropout, operand = None, softmax
    taken, operand, last = _taken(body, at, operand)
    if dropped := _dropped(tree, owner, taken, operand):
        dropout = dropped
        taken, operand, last = _taken(body, last, taken)
    mixed = _product(taken)
    if mixed is None or mixed[0] is not operand:
        raise NotShownError(
            "its probabilities are not multiplied with the values by the statement behind"
        )
    statements = _gone(function, body, first, last, masks)
    _expect_unread(function, statements, body[last])
    _expect_in_place(statements, body[last], taken)
    return Chain(
        statements=statements,
        last=body[last],
        product=taken,
        query=product[0],
        key=key,
        value=mixed[1],
        scale=scale,
        causal=causal,
        dropout=dropout,
    )


def _name(statement: ast.stmt) -> str:
    """The one name that a statement assigns."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case _:
            raise NotShownError("a part of it is assigned to more than a name")


def _made(body: list[ast.stmt], at: int, current: ast.expr | None) -> tuple[ast.expr, int]:
    """The expression that an operand is, or that the statement before assigns to its name, with the place of
    that statement. Statements that make a mask may stand between."""
    assert current is not None
    if not isinstance(current, ast.Name):
        return current, at
    before = at - 1
    while before >= 0 and _makes_mask(body[before]):
        before -= 1
    found = body[before] if before >= 0 else None
    if not isinstance(found, ast.Assign) or _name(found) != current.id:
        raise NotShownError("its scores are not made by the statement before")
    return found.value, before


def _makes_mask(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and triangle(statement.value) is not None


def _taken(body: list[ast.stmt], at: int, node: ast.expr) -> tuple[ast.expr, ast.expr, int]:
    """The expression that takes a result, the operand as which it takes it, and the place of its statement:
    the same one, or the one behind where it is assigned to a name."""
    statement, operand = body[at], node
    if isinstance(statement, ast.Assign) and statement.value is node:
        name, at = _name(statement), at + 1
        statement = body[at] if at < len(body) else statement
        read = [
            each
            for each in ast.walk(statement)
            if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
        ]
        if not isinstance(statement, SIMPLE) or len(read) != 1:
            raise NotShownError("its probabilities are not used by the statement behind alone")
        operand = read[0]
    for each in ast.walk(statement):
        if isinstance(each, ast.expr) and operand in ast.iter_child_nodes(each):
            return each, operand, at
    raise NotShownError("its probabilities are not multiplied with the values")


def _gone(
    function: ast.FunctionDef, body: list[ast.stmt], first: int, last: int, masks: set[str]
) -> tuple[ast.Assign, ...]:
    """The statements before the last one that nothing else needs: those of the chain, and those that make a
    mask for it alone."""
    chain = [each for each in body[first:last] if not _makes_mask(each)]
    inside = {id(node) for each in (*chain, body[last]) for node in ast.walk(each)}
    elsewhere = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside
    }
    idle = masks - elsewhere
    gone = (
        each for each in body[:last] if each in chain or (_makes_mask(each) and _name(each) in idle)
    )
    return tuple(each for each in gone if isinstance(each, ast.Assign))


def _softmax(node: ast.expr) -> ast.expr | None:
    """The operand of a softmax over the last dimension."""
    name, on, args, keywords = called(node)
    if name != "softmax" or on is None:
        return None
    parts = args if is_module(on) else [on, *args]
    dim = parts[1] if len(parts) == 2 else keywords.get("dim")
    alone = bool(parts) and len(parts) + len(keywords) == 2
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


def _is_number(node: ast.expr, owner: ast.ClassDef, function: ast.FunctionDef) -> bool:
    """Whether an expression is made of numbers, sizes and roots, or of names and attributes that are given or
    assigned from such: what is no number after all, torch refuses as a scale. A parameter that is learnt is
    none."""
    numbers = partial(_is_number, owner=owner, function=function)
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float)
        case ast.Name():
            return _comes_from_no_call(node, function)
        case ast.Attribute(value=ast.Name(id="self")):
            return _comes_from_no_call(node, owner)
        case ast.Attribute():
            return True
        case ast.BinOp(left=left, right=right):
            return numbers(left) and numbers(right)
        case ast.UnaryOp(operand=operand):
            return numbers(operand)
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=at):
            return integer(at) is not None
        case ast.Subscript(value=ast.Name() | ast.Attribute() as held, slice=at):
            return integer(at) is not None and numbers(held)
        case (
            ast.Call(func=ast.Attribute(attr="size" | "sqrt"))
            | ast.Call(func=ast.Name(id="sqrt" | "float"))
        ):
            return all(map(numbers, node.args))
        case _:
            return False


def _comes_from_no_call(held: ast.expr, within: ast.AST) -> bool:
    """Whether what is assigned to a name or an attribute is called of nothing but what returns numbers."""
    said = ast.unparse(held)
    calls = (
        call.func
        for each in ast.walk(within)
        if isinstance(each, ast.Assign)
        and any(ast.unparse(part) == said for to in each.targets for part in _parts(to))
        for call in ast.walk(each.value)
        if isinstance(call, ast.Call)
    )
    return all(ast.unparse(each).rpartition(".")[2] in NUMBERS for each in calls)


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _dropped(
    tree: ast.Module, owner: ast.ClassDef, node: ast.expr, probabilities: ast.expr
) -> ast.expr | None:
    """The nn.Dropout that is called on the probabilities, where the class makes it."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="self"), attr=name) as module,
            args=[given],
            keywords=[],
        ) if given is probabilities:
            pass
        case _:
            return None
    made = [
        each.value
        for each in ast.walk(owner)
        if isinstance(each, ast.Assign)
        and any(isinstance(to, ast.Attribute) and to.attr == name for to in each.targets)
    ]
    attributes = (each for each in ast.walk(owner) if isinstance(each, ast.Attribute))
    stored = [each for each in attributes if each.attr == name and isinstance(each.ctx, ast.Store)]
    known = ["nn.Dropout", "torch.nn.Dropout"]
    if bound_names(tree).get("Dropout") == "from torch.nn import Dropout":
        known.append("Dropout")
    is_dropout = (
        len(made) == len(stored) == 1
        and isinstance(made[0], ast.Call)
        and ast.unparse(made[0].func) in known
    )
    if not is_dropout:
        raise NotShownError(f"self.{name} is not shown to be nn.Dropout")
    return module


def _expect_unread(
    function: ast.FunctionDef, statements: tuple[ast.stmt, ...], last: ast.stmt
) -> None:
    """Shows that nothing else reads scores or probabilities; a name that the last one assigns anew is not."""
    names = {_name(each) for each in statements} - set(assigned(last))
    inside = {id(node) for each in (*statements, last) for node in ast.walk(each)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in names and id(node) not in inside:
            raise NotShownError(f"{node.id} is used elsewhere in {function.name} too")


def _expect_in_place(statements: tuple[ast.stmt, ...], last: ast.stmt, product: ast.expr) -> None:
    """Shows that the last statement itself computes the product, where others go: names differ in
    a comprehension, and when a lambda is called."""
    inner = (each for each in ast.walk(last) if isinstance(each, SCOPES))
    if statements and any(product in ast.walk(each) for each in inner):
        raise NotShownError("a comprehension or a lambda multiplies its probabilities")


def _stored(node: ast.AST) -> tuple[str, ...]:
    return (node.id,) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ()


def _expect_own_lines(source: Source, chain: Chain) -> None:
    """Shows that nothing else stands on the lines of a chain."""
    for each in chain.statements:
        start, end = source.span(each)
        before = source.content[source.at(each.lineno) : start]
        behind = source.content[end : source.line_after(each)].strip()
        if before.strip() or (behind and not behind.startswith(b"#")):
            raise NotShownError("it shares a line with another statement")


def _functional(source: Source, function: ast.FunctionDef) -> tuple[str, tuple[str, ...]]:
    """The file's name for torch.nn.functional, and the imports that it lacks for it. A name that the function
    gives to something else, as in `B, T, F = x.shape`, is none."""
    own = {
        *(each.arg for each in ast.walk(function) if isinstance(each, ast.arg)),
        *(name for each in ast.walk(function) for name in _stored(each)),
    }
    for name, how in bound_names(source.tree).items():
        if how in (f"import {FUNCTIONAL}", "from torch.nn import functional") and name not in own:
            return name, ()
    return FUNCTIONAL, ("import torch",)


def _replaced(source: Source, chain: Chain, functional: str) -> Iterator[Edit]:
    """The call in the place of the product; the lines of the others go, comments between them stay."""

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
    call = f"{functional}.scaled_dot_product_attention"
    start, end = source.span(chain.product)
    indent = source.indent_of(chain.last)
    if (
        "\n" not in "".join(given)
        and len(indent) + len(call) + sum(len(each) + 2 for each in given) < LONGEST - 10
    ):
        made = f"{call}({', '.join(given)})".encode()
    else:
        lines = source.lines([f"    {each}," for each in given], indent)
        made = f"{call}(".encode() + source.newline + lines + indent + b")"
    yield Edit(start, end, made)
    for each in chain.statements:
        yield Edit(source.at(each.lineno), source.line_after(each), b"")
