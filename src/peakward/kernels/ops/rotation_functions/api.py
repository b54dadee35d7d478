"""Attention of any class whose rotation is in the kernel of `rope`, in place.

A forward pass is given names of its own in the place of its file's, so that no other module that calls the
same function is changed.
"""

import dis
import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from peakward.kernels.ops.forwards import Call, Replaced, replace_forwards
from peakward.kernels.ops.probing import Results, Types
from peakward.kernels.ops.rope.api import rope
from peakward.kernels.ops.rotation_functions.behaviour import Rotation, Shapes, rotation_of

Turns = tuple[tuple[str, Rotation], ...]
"""The rotations that a forward pass calls, by the names that it has for them."""


def fuse_rope(module: nn.Module) -> int:
    """Lets attention that calls a function for its rotation turn queries and keys in one pass, in place.

    The function is found by what it computes: the rotation of transformers' `apply_rotary_pos_emb`, by halves
    or by neighbours, of queries and keys together or of one of them, that a module's forward pass calls by a
    name of its file. Names that the file is given later are not seen.

    Returns:
        The number of modules that were changed.
    """
    return replace_rope(module).n


def replace_rope(module: nn.Module) -> Replaced:
    """Does what `fuse_rope` does, and returns what takes it back too."""
    device = next((each.device for each in module.parameters()), torch.device("meta"))
    called = functools.cache(lambda forward: _called(forward, device))
    found: dict[Turns, list[nn.Module]] = {}
    for each in module.modules():
        forward = type(each).forward
        if "forward" not in vars(each) and isinstance(forward, FunctionType) and called(forward):
            found.setdefault(called(forward), []).append(each)
    return replace_forwards(found, lambda turns: functools.partial(_turning, turns))


def _called(forward: FunctionType, device: torch.device) -> Turns:
    """The rotations that a forward pass calls, unless it gives its file's names other values itself."""
    if _writes_globals(forward.__code__):
        return ()
    asked = {name: forward.__globals__.get(name) for name in sorted(_names(forward.__code__))}
    rotations = {name: rotation_of(each, device) for name, each in asked.items()}
    return tuple((name, each) for name, each in rotations.items() if each is not None)


def _writes_globals(code: CodeType) -> bool:
    """Whether it, or a function in it, does."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    own = (each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for each in dis.get_instructions(code))
    return any(own) or any(map(_writes_globals, inner))


def _names(code: CodeType) -> set[str]:
    """The names that it looks up, and those of the functions in it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _turning(turns: Turns, kind: type[nn.Module], _own: Call | None) -> Call:
    """The class's forward function with these names for other functions."""
    plain = kind.forward
    assert isinstance(plain, FunctionType)
    names = plain.__globals__
    fused = {name: _fused(names[name], rotation) for name, rotation in turns}
    made = FunctionType(
        plain.__code__, {**names, **fused}, plain.__name__, plain.__defaults__, plain.__closure__
    )
    made.__kwdefaults__ = plain.__kwdefaults__
    return made


def _fused(function: Callable[..., Any], rotation: Rotation) -> Callable[..., Any]:
    types, n = Types(rotation.results, _results_of), rotation.n_turned

    @functools.wraps(function)
    def rotated(*given: Any, **named: Any) -> Any:
        if named or len(given) != n + 2 or not all(isinstance(each, Tensor) for each in given):
            return function(*given, **named)
        *heads, cos, sin = given
        dtypes = {types.of(function, each, cos.dtype) for each in heads}
        shapes = _shapes(rotation, heads, cos, sin)
        if shapes is None or len(dtypes) != 1 or (dtype := dtypes.pop()) is None:
            return function(*given)
        made = tuple(_turned(each, cos, sin, shapes, dtype) for each in heads)
        return made if n > 1 else made[0]

    return rotated


def _results_of(function: Callable[..., Any], device: torch.device) -> Results | None:
    rotation = rotation_of(function, device)
    return None if rotation is None else rotation.results


def _shapes(rotation: Rotation, heads: list[Tensor], cos: Tensor, sin: Tensor) -> Shapes | None:
    """How the heads of a call lie, where they lie as in a probe."""
    if cos.shape != sin.shape or cos.dtype != sin.dtype or cos.requires_grad or sin.requires_grad:
        return None
    if any(each.dim() != 4 for each in heads):
        return None
    for each in rotation.shapes:
        if all(each.angle(x, cos) is not None for x in heads):
            return each
    return None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, shapes: Shapes, dtype: torch.dtype) -> Tensor:
    """By the kernel, in the wider of both types, so that nothing is rounded twice."""
    own_cos, own_sin = shapes.angle(x, cos), shapes.angle(x, sin)
    assert own_cos is not None
    assert own_sin is not None
    x = x.to(torch.promote_types(x.dtype, dtype))
    x = x if shapes.heads_first else x.transpose(1, 2)
    own_sin = own_sin if shapes.sign > 0 else -own_sin
    turned = rope(x, own_cos, own_sin, neighbours=shapes.neighbours)
    return (turned if shapes.heads_first else turned.transpose(1, 2)).to(dtype)
