"""Copies of modules that compute with parameters of their own, whatever their functions hold.

`copy.deepcopy` takes a function for a constant. A module that holds one over its parts, as minGPT's blocks
do (`m = self.mlp; self.mlpf = lambda x: m.c_proj(m.act(m.c_fc(x)))`), would in the copy compute with the
parts of the original, and train those.
"""

import copy
from types import CellType, FunctionType
from typing import Any, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def copied(module: M) -> M:
    """Returns a deep copy. Functions that its modules hold, and functions in their closures and defaults,
    read the copies of what they read in the original."""
    memo: dict[int, Any] = {}
    made = copy.deepcopy(module, memo)
    for each in made.modules():
        for name, value in vars(each).items():
            if isinstance(value, FunctionType):
                vars(each)[name] = _rebound(value, memo)
    return made


def _rebound(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """The function over copies; itself where it reads nothing that was copied. A function that reads itself
    finds its own copy."""
    known = memo.get(id(function))
    if known is not None and known is not function:
        return known
    if not _reads(function, memo, set()):
        return function
    cells = tuple(CellType() for _ in function.__closure__ or ())
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        None,
        cells if function.__closure__ is not None else None,
    )
    memo[id(function)] = made
    for cell, given in zip(cells, function.__closure__ or (), strict=True):
        if _is_filled(given):
            cell.cell_contents = _in_copy(given.cell_contents, memo)
    made.__defaults__ = _each_in_copy(function.__defaults__, memo)
    if function.__kwdefaults__ is not None:
        made.__kwdefaults__ = {
            name: _in_copy(value, memo) for name, value in function.__kwdefaults__.items()
        }
    made.__dict__.update(function.__dict__)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
    return made


def _reads(function: FunctionType, memo: dict[int, Any], seen: set[int]) -> bool:
    """Whether it reads a thing that was copied, by itself or by a function that it reads."""
    seen.add(id(function))
    for value in _held(function):
        if isinstance(value, FunctionType):
            if id(value) not in seen and _reads(value, memo, seen):
                return True
        elif _in_copy(value, memo) is not value:
            return True
    return False


def _held(function: FunctionType) -> list[Any]:
    cells = [each.cell_contents for each in function.__closure__ or () if _is_filled(each)]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _in_copy(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, FunctionType):
        return _rebound(value, memo)
    return memo.get(id(value), value)


def _each_in_copy(values: tuple[Any, ...] | None, memo: dict[int, Any]) -> tuple[Any, ...] | None:
    return None if values is None else tuple(_in_copy(each, memo) for each in values)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  an empty one raises
    except ValueError:
        return False
    return True
