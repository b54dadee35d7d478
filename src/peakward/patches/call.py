"""Lines of torch in the place of a call that was given a model, or behind it."""

import ast

from peakward.patches.factory import NAME, Lines, defined, free
from peakward.patches.source import Edit, Source
from peakward.records.errors import PeakwardError

_Simple = ast.Expr | ast.Assign | ast.AnnAssign | ast.Return
READ = ("report", "levers", "configuration", "certificate", "proof", "notes", "patch")
"""What a handle of `optimize` is read by; anything else of it does something."""


def at_call(source: Source, line: int, function: str, lines: Lines) -> tuple[Edit, ...]:
    """The edits that give the model of a call these lines.

    They stand in the place of the call where nothing uses its result, else behind it. `optimize` applies its
    levers itself, so that its call goes with the statements that only read what it returned.

    Args:
        line: a line that the call is on.
        function: the last name of what is called.

    Raises:
        PeakwardError: the call is not found, its model has no name, or what `optimize` returned is used for
            more than to be read.
    """
    top, statement, call = _called(source, line, function)
    model = next((each.value for each in call.keywords if each.arg in ("model", "case")), None)
    if function != "investigate" and call.args:
        model = call.args[0]
    if model is None or not _is_name(model):
        raise PeakwardError(
            f"expected the model of {function} in {source.path}:{line} to be a name, got an expression: "
            "give it one"
        )
    name = free(source, NAME)
    made = f"{name}({source.text(model).decode()})"
    function_of_them = defined(source, top, name, lines, "module")
    bound = _bound_to(statement, call)
    readers = [] if bound is None else _readers(source, bound)
    is_alone = isinstance(statement, ast.Expr) and statement.value is call
    if is_alone or (bound is not None and not readers):
        return (Edit(*source.span(statement), made.encode()), *function_of_them)
    if function == "optimize":
        if bound is None or None in readers:
            raise PeakwardError(
                f"expected what {function} returned in {source.path}:{line} to be read alone, got another "
                "use of it: train by the model and the optimizer, and leave .step and .undo out"
            )
        gone = [_taken_out(source, each) for each in readers if each is not None]
        return (Edit(*source.span(statement), made.encode()), *gone, *function_of_them)
    start = source.at(statement.lineno)
    alone = source.content[start : source.span(statement)[0]].strip() == b""
    if isinstance(statement, ast.Return) or not alone:
        raise PeakwardError(
            f"expected {function} in {source.path}:{line} to be called on a line of its own, got it in "
            "another statement: assign its result"
        )
    at = source.line_after(statement)
    before = b"" if source.content[at - 1 : at] in (b"\n", b"\r") else source.newline
    behind = before + source.indent_of(statement) + made.encode() + source.newline
    return (Edit(at, at, behind), *function_of_them)


def _called(source: Source, line: int, function: str) -> tuple[ast.stmt, _Simple, ast.Call]:
    """The statement of the file's top, the innermost statement, and the call in it."""
    found = [
        (top, statement, call)
        for top in source.tree.body
        for statement in ast.walk(top)
        if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return)
        and statement.value is not None
        for call in ast.walk(statement.value)
        if isinstance(call, ast.Call)
        and _last_name(call.func) == function
        and call.lineno <= line <= (call.end_lineno or line)
    ]
    if len(found) != 1:
        raise PeakwardError(
            f"expected one call of {function} in {source.path}:{line}, got {len(found)}: write it as a "
            "statement of its own"
        )
    return found[0]


def _last_name(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_name(node.value))


def _bound_to(statement: _Simple, call: ast.Call) -> str | None:
    """The one name that the result of a call is assigned to."""
    if statement.value is not call or not isinstance(statement, ast.Assign | ast.AnnAssign):
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _readers(source: Source, name: str) -> list[ast.Expr | None]:
    """The statements that only read a name, such as `print(name.report)`; None for each other use."""
    found: dict[int, ast.Expr | None] = {}
    reads: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Expr) and _only_reads(node, name):
            reads |= {id(each) for each in ast.walk(node)}
            found[id(node)] = node
    for node in ast.walk(source.tree):
        is_use = (
            isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store)
        )
        if is_use and id(node) not in reads:
            found[id(node)] = None
    return list(found.values())


def _only_reads(statement: ast.Expr, name: str) -> bool:
    """Whether a statement prints a name, or a part of it that is in `READ`."""
    match statement.value:
        case ast.Call(func=ast.Name(id="print"), args=args, keywords=[]) if args:
            return all(_is_read(each, name) for each in args)
        case value:
            return _is_read(value, name)


def _is_read(node: ast.expr, name: str) -> bool:
    while True:
        match node:
            case ast.Name(id=found):
                return found == name
            case ast.Attribute(value=ast.Name(id=found), attr=attr):
                return found == name and attr in READ
            case ast.Call(func=inner, args=[], keywords=[]):
                node = inner
            case _:
                return False


def _taken_out(source: Source, statement: ast.stmt) -> Edit:
    """The statement as `pass`, which stands in any block."""
    return Edit(*source.span(statement), b"pass")
