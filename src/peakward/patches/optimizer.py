"""The optimizer where a file makes it: an argument of torch's, or another class."""

import ast
import re
from collections.abc import Iterator

from peakward.patches.source import Edit, Source, bound_names, with_imports
from peakward.records.case import Optimizer

WITH_FLAGS = ("Adam", "AdamW", "SGD", "Adagrad")
"""The optimizers of torch that take `foreach` and `fused` (torch 2.13)."""
_FLAGS: dict[Optimizer, tuple[str, str]] = {
    "adamw-loop": ("foreach", "False"),
    "adamw-foreach": ("foreach", "True"),
    "adamw-fused": ("fused", "True"),
}
_STATES: dict[Optimizer, str | None] = {
    "adamw-triton": None,
    "adamw-bf16-states": "bf16",
    "adamw-8bit-states": "8bit",
}
"""The values that TritonAdamW carries out, with its argument."""
_OWN = "from peakward.kernels import TritonAdamW"
_OF_OWN = ("lr", "betas", "eps", "weight_decay")


def in_optimizers(source: Source, wanted: Optimizer) -> tuple[tuple[Edit, ...], tuple[str, ...]]:
    """The edits that make each optimizer of torch in the file the wanted one.

    Returns:
        The edits, and a sentence for each optimizer that is left.
    """
    edits: list[Edit] = []
    left: list[str] = []
    own = wanted in _STATES
    for call, kind in _made(source.tree):
        keywords = {each.arg: each for each in call.keywords}
        where = f"{source.path}:{call.lineno}"
        if None in keywords or any(isinstance(each, ast.Starred) for each in call.args):
            left.append(f"The optimizer in {where} takes arguments that are not written out.")
        elif own and (kind != "AdamW" or len(call.args) > 1 or {*keywords} - {"params", *_OF_OWN}):
            left.append(
                f"The optimizer in {where} is no AdamW of {', '.join(_OF_OWN)} alone, as TritonAdamW is."
            )
        elif own:
            edits.append(Edit(*source.span(call.func), b"TritonAdamW"))
            if states := _STATES[wanted]:
                edits += _with_argument(source, call, f'states="{states}"')
        elif kind not in WITH_FLAGS or len(call.args) > 2:
            left.append(f"The optimizer in {where} has no argument {_FLAGS[wanted][0]} by name.")
        else:
            edits += _flagged(source, call, keywords, wanted)
    if own and edits:
        edits += with_imports(source, (_OWN,))
    return tuple(edits), tuple(left)


def _flagged(
    source: Source, call: ast.Call, keywords: dict[str | None, ast.keyword], wanted: Optimizer
) -> Iterator[Edit]:
    """Sets one of the two arguments; the other, which excludes it, becomes None."""
    name, value = _FLAGS[wanted]
    other = "foreach" if name == "fused" else "fused"
    if (held := keywords.get(other)) is not None:
        yield Edit(*source.span(held.value), b"None")
    if (held := keywords.get(name)) is not None:
        yield Edit(*source.span(held.value), value.encode())
        return
    yield from _with_argument(source, call, f"{name}={value}")


def _with_argument(source: Source, call: ast.Call, argument: str) -> Iterator[Edit]:
    """Adds an argument by name behind the last one of a call; a call without any is left."""
    parts = [*call.args, *(each.value for each in call.keywords)]
    if not parts:
        return
    end = max(source.span(each)[1] for each in parts)
    behind = re.sub(
        rb"#[^\r\n]*",
        lambda each: b" " * len(each.group()),
        source.content[end : source.span(call)[1] - 1],
    )
    # Brackets around the last argument close behind its node.
    at = end + behind.rfind(b")") + 1
    yield Edit(at, at, f", {argument}".encode())


def _made(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """The calls of optimizers of torch, each with the class's name."""
    bound = bound_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _of_torch(node.func, bound)) is not None:
            yield node, name


def _of_torch(node: ast.expr, bound: dict[str, str | None]) -> str | None:
    """The name of the class in torch.optim, where that is what an expression names."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    how = bound.get(node.id) if isinstance(node, ast.Name) else None
    if how is None:
        return None
    start = how.split()[-1] if how.startswith("import ") else ".".join(how.split()[1::2])
    *package, name = (*start.split("."), *path)
    return name if package == ["torch", "optim"] and name[:1].isupper() else None
