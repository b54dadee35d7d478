"""Lines of torch in the place of a call that was given a model, or behind it."""

import ast

from peakward.patches.factory import NAME, Lines, defined, free
from peakward.patches.source import Edit, Source
from peakward.records.errors import PeakwardError

_Simple = ast.Expr | ast.Assign | ast.AnnAssign | ast.Return
READ = ("report", "levers", "configuration", "certificate", "proof", "notes", "patch")
"""The attributes by which a handle of `optimize` is only read; any other attribute does something."""
TELLS = ("print", "write_text")
"""Calls that give what was read to a person or to a file."""
FORMS = ("str", "repr", "len", "markdown", "html", "join", "format", "open", "Path")
"""Calls that do no more than make what is told."""


def at_call(source: Source, line: int, function: str, lines: Lines) -> tuple[Edit, ...]:
    """The edits that give the model of a call these lines.

    They stand in the place of the call where nothing uses its result, else behind it. `optimize` applies its
    levers itself, so that its call goes with the statements that only tell what it returned, lines or none.

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
    made = f"{name}({source.text(model).decode()})" if lines.body else "pass"
    function_of_them = defined(source, top, name, lines, "module") if lines.body else ()
    bound = _bound_to(statement, call)
    readers, others = ([], []) if bound is None else _uses(source, bound)
    is_alone = isinstance(statement, ast.Expr) and statement.value is call
    if is_alone or (bound is not None and not readers and not others):
        return (Edit(*source.span(statement), made.encode()), *function_of_them)
    if function == "optimize":
        if bound is None or others:
            raise PeakwardError(
                f"expected what {function} returned in {source.path}:{line} to be no more than told, by "
                f"print, .save or .write_text, got another use in line {min(others, default=line)}: train by "
                "the model and the optimizer, and leave .step and .undo out"
            )
        gone = [_taken_out(source, each) for each in readers]
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


def _uses(source: Source, name: str) -> tuple[list[ast.Expr], list[int]]:
    """The statements that only tell what a name holds, such as `print(name.report)`, and the lines of its
    other uses."""
    telling = [
        each for each in ast.walk(source.tree) if isinstance(each, ast.Expr) and _tells(each, name)
    ]
    within = {id(node) for each in telling for node in ast.walk(each)}
    uses = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store)
    ]
    used = {id(node) for node in uses}
    readers = [each for each in telling if any(id(node) in used for node in ast.walk(each))]
    return readers, [node.lineno for node in uses if id(node) not in within]


def _tells(statement: ast.Expr, name: str) -> bool:
    """Whether a statement does nothing but print or write what is read of a name."""
    match statement.value:
        case ast.Call(func=ast.Name(id=told) | ast.Attribute(attr=told)) as call if told in TELLS:
            return _only_reads(call, name, (*TELLS, *FORMS))
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="open")), attr="write")):
            return _only_reads(statement.value, name, (*FORMS, "write"))
        case value:
            return _is_read(value, name)


def _only_reads(node: ast.AST, name: str, calls: tuple[str, ...]) -> bool:
    """Whether an expression calls nothing but these, and has only reads of a name."""
    if isinstance(node, ast.expr) and _is_read(node, name):
        return True
    if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
        return False
    if isinstance(node, ast.Call) and _last_name(node.func) not in calls:
        return False
    is_it = isinstance(node, ast.Name) and node.id == name
    return not is_it and all(_only_reads(each, name, calls) for each in ast.iter_child_nodes(node))


def _is_read(node: ast.expr, name: str) -> bool:
    """Whether an expression is a name, or a part of it that is in `READ`, and what that gives by itself."""
    while True:
        match node:
            case ast.Name(id=found):
                return found == name
            case ast.Attribute(value=ast.Name(id=found), attr=attr):
                return found == name and attr in READ
            case ast.Attribute(value=inner):
                node = inner
            case ast.Call(func=inner, args=args, keywords=keywords) if all(
                _only_reads(each, name, FORMS) for each in (*args, *keywords)
            ):
                node = inner
            case _:
                return False


def _taken_out(source: Source, statement: ast.stmt) -> Edit:
    """The statement as `pass`, which stands in any block."""
    return Edit(*source.span(statement), b"pass")
