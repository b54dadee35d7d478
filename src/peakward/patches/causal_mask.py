"""Shows of code that fills in scores of attention by a mask, that the mask is causal."""

import ast

JOINS = ("cat", "concat", "concatenate", "update")
"""Functions by which keys are put to those of a cache; over dimension -1 they put parts of heads together."""


class NotShownError(Exception):
    """The reason why a chain is left, as the end of a sentence."""


def mask(node: ast.expr | None) -> tuple[ast.expr, ast.expr] | None:
    """The scores and the condition of `scores.masked_fill(condition, -inf)`."""
    name, on, args, keywords = called(node)
    if name != "masked_fill" or on is None or keywords or len(args) != 2:
        return None
    if not _is_minus_infinity(args[1]):
        raise NotShownError("its mask fills in another number than minus infinity")
    return on, args[0]


def expect_causal(owner: ast.ClassDef, function: ast.FunctionDef, condition: ast.expr) -> set[str]:
    """Shows that a condition is true exactly above the diagonal: `self.mask[..., :n, :n] == 0` of a lower
    triangle, its inverse, or an upper triangle as it is; of a triangle that the function makes as well.

    Returns:
        The names of the function's own by which it was shown.
    """
    names: set[str] = set()
    inverted, buffer = _plain(condition)
    while isinstance(buffer, ast.Name):
        made = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and buffer.id in assigned(each)
        ]
        stored = sum(
            isinstance(each, ast.Name) and each.id == buffer.id and isinstance(each.ctx, ast.Store)
            for each in ast.walk(function)
        )
        given = any(
            each.arg == buffer.id for each in ast.walk(function) if isinstance(each, ast.arg)
        )
        if len(made) != 1 or stored != 1 or given or buffer.id in names:
            raise NotShownError(
                f"its mask {buffer.id} is not assigned once, by the function itself"
            )
        _expect_unchanged(function, buffer)
        names.add(buffer.id)
        again, buffer = _plain(made[0])
        inverted ^= again
    if (found := triangle(buffer)) is not None:
        if found != ("tril" if inverted else "triu"):
            raise NotShownError("its mask is not shown to be causal")
        return names
    _expect_first_n(owner, buffer, inverted=inverted)
    return names


def _expect_unchanged(within: ast.AST, mask: ast.expr) -> None:
    """Shows that no part of a mask is assigned, and no method changes it in its place: `mask[:, :n] = 0`
    shows a prefix to all, `mask.logical_or_(padding)` hides more."""
    said = ast.unparse(mask)
    for node in ast.walk(within):
        match node:
            case ast.Subscript(value=on, ctx=ast.Store()):
                pass
            case ast.Call(func=ast.Attribute(value=on, attr=attr)) if attr.endswith("_"):
                pass
            case _:
                continue
        while ast.unparse(on) != said and isinstance(on, ast.Attribute | ast.Subscript | ast.Call):
            on = on.func if isinstance(on, ast.Call) else on.value
        if ast.unparse(on) == said:
            raise NotShownError(f"its mask {said} is changed in its place")


def expect_all_keys(function: ast.FunctionDef, key: ast.expr) -> None:
    """Shows that no keys are put to earlier ones, there or by who calls the function. A mask of one row and
    one column lets one query see all of them, and torch's causal one the first alone."""
    for each in ast.walk(function):
        if not isinstance(each, ast.Call):
            continue
        name, _, args, keywords = called(each)
        dims = [*args[1:2], *(keywords[key] for key in keywords if key == "dim")]
        if name in JOINS and [integer(dim) for dim in dims] != [-1]:
            raise NotShownError(f"{function.name} may put keys to earlier ones, by {name}")
    stored = (
        each.id
        for each in ast.walk(function)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    )
    if isinstance(key, ast.Name) and key.id not in stored:
        raise NotShownError(f"{function.name} is given its keys, which may be those of a cache")


def assigned(statement: ast.stmt) -> list[str]:
    """The names that a statement assigns, each alone."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _plain(condition: ast.expr) -> tuple[bool, ast.expr]:
    """Whether a condition is the inverse of a mask, and that mask."""
    match condition:
        case ast.Compare(left=buffer, ops=[ast.Eq()], comparators=[ast.Constant(value=0 | False)]):
            return True, buffer
        case ast.UnaryOp(op=ast.Invert(), operand=buffer):
            return True, buffer
        case ast.Call(func=ast.Attribute(value=buffer, attr="logical_not"), args=[]):
            return True, buffer
        case _:
            return False, condition


def _expect_first_n(owner: ast.ClassDef, buffer: ast.expr, *, inverted: bool) -> None:
    match buffer:
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id="self"), attr=name) as whole_buffer,
            slice=ast.Tuple(elts=parts),
        ):
            pass
        case _:
            raise NotShownError("its mask is no slice of a buffer of the module")
    rows, columns = parts[-2:] if len(parts) > 1 else (None, None)
    whole = all(_is_whole(each) for each in parts[:-2])
    if not (
        whole and _is_first_n(rows) and rows and columns and ast.dump(rows) == ast.dump(columns)
    ):
        raise NotShownError(
            "its mask is not the first n rows and the first n columns of the buffer"
        )
    if _triangle(owner, name) != ("tril" if inverted else "triu"):
        raise NotShownError(f"self.{name} is not shown to be causal")
    _expect_unchanged(owner, whole_buffer)


def _triangle(owner: ast.ClassDef, name: str) -> str | None:
    """`tril` or `triu`, where the class makes the buffer so and nothing of it assigns it anew."""
    made = []
    for node in ast.walk(owner):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=attr, ctx=ast.Store()) if (
                attr == name
            ):
                return None
            case ast.Call(
                func=ast.Attribute(attr="register_buffer"),
                args=[ast.Constant(value=said), value, *_],
            ) if said == name:
                made.append(value)
    return triangle(made[0]) if len(made) == 1 else None


def triangle(node: ast.expr) -> str | None:
    """`tril` or `triu`, of a square of ones under views and casts: below the diagonal and on it, or above."""
    name, on, args, keywords = called(node)
    if on is None:
        match node:
            case ast.Subscript(value=value, slice=places):
                parts = places.elts if isinstance(places, ast.Tuple) else [places]
                return triangle(value) if all(map(_is_whole, parts)) else None
            case _:
                return None
    if name in ("view", "bool", "unsqueeze", "to", "reshape") and not is_module(on):
        return triangle(on)
    parts = args if is_module(on) else [on, *args]
    if name not in ("tril", "triu") or not parts:
        return None
    ones = called(parts[0])
    diagonal = parts[1] if len(parts) > 1 else keywords.get("diagonal")
    offset = 0 if diagonal is None else integer(diagonal)
    square = (
        ones[0] == "ones" and len(ones[2]) == 2 and ast.dump(ones[2][0]) == ast.dump(ones[2][1])
    )
    return name if square and offset == (0 if name == "tril" else 1) else None


def _is_minus_infinity(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
            return text.strip().lower() in ("-inf", "-infinity")
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            match inner:
                case ast.Attribute(attr="inf"):
                    return True
                case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
                    return text.strip().lower() in ("inf", "infinity")
        case _:
            pass
    return False


def _is_whole(node: ast.expr) -> bool:
    match node:
        case ast.Slice(lower=None, upper=None, step=None):
            return True
        case ast.Constant(value=value):
            return value is None or value is Ellipsis
        case _:
            return False


def _is_first_n(node: ast.expr | None) -> bool:
    return (
        isinstance(node, ast.Slice)
        and node.lower is None
        and node.upper is not None
        and node.step is None
    )


def called(
    node: ast.expr | None,
) -> tuple[str, ast.expr | None, list[ast.expr], dict[str | None, ast.expr]]:
    """The last name of what is called, what it is called on, and the arguments."""
    match node:
        case ast.Call(func=ast.Attribute(value=on, attr=name), args=args, keywords=keywords):
            return name, on, args, {each.arg: each.value for each in keywords}
        case _:
            return "", None, [], {}


def is_module(node: ast.expr | None) -> bool:
    """Whether a name is that of torch, or usual for its functional module."""
    return isinstance(node, ast.Attribute) or (
        isinstance(node, ast.Name) and node.id in ("torch", "F")
    )


def integer(node: ast.expr) -> int | None:
    try:
        found = ast.literal_eval(node)
    except ValueError:
        return None
    return found if isinstance(found, int) else None
