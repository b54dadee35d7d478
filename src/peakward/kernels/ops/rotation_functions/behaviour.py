"""Finds functions that turn heads by RoPE, by what they compute: transformers' `apply_rotary_pos_emb` and
what others write in its place.

A function is asked in fp64 for every layout of heads and every shape of cosines that is known here. Where it
answers with a rotation, of halves or of neighbours, this is remembered with its shapes, and in which types.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops import probing
from peakward.kernels.ops.probing import Kind, Results

_BATCH, _SEQ_LEN, _HEADS, _HEAD_DIM = 2, 5, (3, 1), 8
"""Lengths of a probe, all different; queries have other heads than keys."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """How heads and cosines lie in a call."""

    heads_first: bool
    """Whether heads are (batch, heads, seq_len, head_dim); else positions come first."""
    n_dims: int
    """The dimensions of cosines. 4: as they are multiplied; 3: without that of heads; 2: without batches."""
    is_whole: bool
    """Whether cosines are as wide as a head, or half as wide."""
    neighbours: bool
    """Whether element 2i is turned with 2i + 1; else element i with i + head_dim/2."""
    sign: float
    """-1 where heads are turned the other way."""

    def angle(self, x: Tensor, angle: Tensor) -> Tensor | None:
        """Cosines, or sines, as (seq_len, …) or (batch, seq_len, …) of these heads; None of others."""
        seq_len = x.shape[2 if self.heads_first else 1]
        width = x.shape[-1] if self.is_whole else x.shape[-1] // 2
        if angle.dim() != self.n_dims:
            return None
        if angle.dim() == 4:
            of_heads = 1 if self.heads_first else 2
            if angle.shape[of_heads] != 1:
                return None
            angle = angle.squeeze(of_heads)
        if angle.dim() == 3 and angle.shape[0] == 1:
            angle = angle[0]
        fits = angle.shape[-2:] == (seq_len, width) and angle.shape[:-2] in ((), x.shape[:1])
        return angle if fits else None


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """A function f(q, k, cos, sin), or f(x, cos, sin), that turns heads."""

    n_turned: int
    shapes: tuple[Shapes, ...]
    results: Results
    """The kinds of calls in which it is this rotation, by the types of heads and of cosines."""


def rotation_of(function: object, device: torch.device) -> Rotation | None:
    """The rotation that a function computes; None of one that is none, or that a probe cannot tell.

    Only functions that call their last arguments cos and sin are asked: any other might do anything.
    """
    if not isinstance(function, FunctionType) or device.type == "meta":
        return None
    taken = inspect.signature(function).parameters.values()
    needed = [each.name for each in taken if each.default is each.empty]
    plain = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in taken)
    if not plain or len(needed) not in (3, 4):
        return None
    if "cos" not in needed[-2] or "sin" not in needed[-1]:
        return None
    return probing.probed(partial(_found, function, len(needed) - 2, device), device)


def _found(function: Callable[..., Any], n_turned: int, device: torch.device) -> Rotation | None:
    shapes = tuple(each for each in _all_shapes() if _holds(function, n_turned, each, device))
    if not shapes:
        return None
    types = tuple(_types(function, n_turned, shapes[0], device))
    results = Results(device.type, types)
    return Rotation(n_turned=n_turned, shapes=shapes, results=results) if types else None


def _all_shapes() -> Iterator[Shapes]:
    either = (True, False)
    for heads_first, n_dims, is_whole, neighbours, sign in product(
        either, (4, 3, 2), either, either, (1.0, -1.0)
    ):
        yield Shapes(
            heads_first=heads_first,
            n_dims=n_dims,
            is_whole=is_whole,
            neighbours=neighbours,
            sign=sign,
        )


def _holds(
    function: Callable[..., Any], n_turned: int, shapes: Shapes, device: torch.device
) -> bool:
    """Whether it is the rotation in fp64, with its gradients, for cosines of one batch and of each."""
    for batch in (_BATCH, 1):
        heads, angles = _probe(n_turned, shapes, batch, torch.float64, device)
        expected = [turned(each, angles, shapes) for each in heads]
        found = _called(function, heads, angles)
        if found is None or not all(map(_is_close, found, expected)):
            return False
        drawn = [torch.randn_like(each) for each in expected]
        pair = (torch.autograd.grad(each, heads, drawn) for each in (found, expected))
        if not all(map(_is_close, *pair)):
            return False
    return True


def _is_close(found: Tensor, expected: Tensor) -> bool:
    return probing.agrees(found, expected, probing.VALUES)


def _called(
    function: Callable[..., Any], heads: list[Tensor], angles: list[Tensor]
) -> list[Tensor] | None:
    """Its results; None where it refuses the shapes."""
    try:
        made = function(*heads, *angles)
    except (RuntimeError, IndexError, ValueError):
        return None
    if len(heads) == 1:
        return [made]
    return list(made) if isinstance(made, tuple) and len(made) == len(heads) else None


def _probe(
    n_turned: int, shapes: Shapes, batch: int, dtype: torch.dtype, device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Heads, and cosines and sines, whose halves differ: they need not be those of an angle."""
    width = _HEAD_DIM if shapes.is_whole else _HEAD_DIM // 2
    heads = []
    for n in _HEADS[:n_turned]:
        lengths = (n, _SEQ_LEN) if shapes.heads_first else (_SEQ_LEN, n)
        heads.append(probing.drawn((_BATCH, *lengths, _HEAD_DIM), n))
    of_heads = (1, _SEQ_LEN) if shapes.heads_first else (_SEQ_LEN, 1)
    shape = {4: (batch, *of_heads, width), 3: (batch, _SEQ_LEN, width), 2: (_SEQ_LEN, width)}
    angles = [probing.drawn(shape[shapes.n_dims], seed) for seed in (7, 8)]
    return (
        [each.to(device, dtype).requires_grad_() for each in heads],
        [each.to(device, dtype) for each in angles],
    )


def turned(x: Tensor, angles: Sequence[Tensor], shapes: Shapes) -> Tensor:
    """The rotation by torch, in the types given; angles are cosines and sines."""
    cos, sin = angles
    of_heads = 1 if shapes.heads_first else 2
    if shapes.n_dims < 4:
        cos, sin = (
            each.unsqueeze(of_heads if each.dim() == 3 else of_heads - 1) for each in (cos, sin)
        )
    if shapes.neighbours:
        if not shapes.is_whole:
            cos, sin = (each.repeat_interleave(2, dim=-1) for each in (cos, sin))
        other = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    else:
        if not shapes.is_whole:
            cos, sin = (torch.cat((each, each), dim=-1) for each in (cos, sin))
        low, high = x.chunk(2, dim=-1)
        other = torch.cat((-high, low), dim=-1)
    return x * cos + other * sin * shapes.sign


def _types(
    function: Callable[..., Any], n_turned: int, shapes: Shapes, device: torch.device
) -> Iterator[tuple[Kind, torch.dtype]]:
    for of_heads, of_angles, cast in product(probing.TYPES, probing.TYPES, probing.CASTS):
        heads, angles = _probe(n_turned, shapes, _BATCH, torch.float64, device)
        heads = [each.detach().to(of_heads) for each in heads]
        angles = [each.to(of_angles) for each in angles]
        with probing.autocast(device, cast):
            found = _called(function, heads, angles)
        wide = [each.double() for each in angles]
        expected = [turned(each.double(), wide, shapes) for each in heads]
        coarsest = max(torch.finfo(each).eps for each in (of_heads, of_angles, cast) if each)
        bound = probing.ROUNDINGS * coarsest
        if found is None or len({each.dtype for each in found}) != 1:
            continue
        if all(map(partial(probing.agrees, bound=bound), found, expected)):
            yield (of_heads, of_angles, cast), found[0].dtype
