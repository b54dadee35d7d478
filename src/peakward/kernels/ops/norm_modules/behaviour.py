"""Finds norms by what they compute: any module that is RMSNorm or LayerNorm of its parameters."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peakward.kernels.ops import probing
from peakward.kernels.ops.probing import Results

_UNKNOWN = Results("", ())
_LEAST_WIDTH = 4
_TINY = 1e-8
"""The scale of rows whose variance, 1e-16, is nothing beside an epsilon."""
_NO_EPSILON = 1e-18
_OUTER = ((6,), (2, 3), (2, 3, 2))
_SCALES = (1.0, 1e-4, 30.0, 1e-2, 3e-3, 1e4)
_OF_TYPES = (1.0, 1e-2, 30.0, 1e-3, 1e3, 1e4)
"""Scales of rows that fp16 holds."""
_NEAR = 1e-5
"""How far a solved epsilon may be from the number that the module was written with: it is solved from results
in fp32."""


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A norm over the last dimension, with the names of its module's parameters."""

    width: int
    is_centred: bool
    """Whether it takes the mean off: LayerNorm."""
    weight: str
    offset: float
    """The number that is added to the weight: 1 in Gemma's."""
    bias: str | None
    eps: float = 0.0
    results: Results = _UNKNOWN
    """The kinds of calls in which it is this norm, with the types of results."""

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        """The norm of x (…, width) in fp64, with the module's parameters, by torch."""
        weight = getattr(module, self.weight).double() + self.offset
        if not self.is_centred:
            return F.rms_norm(x, (self.width,), weight, self.eps)
        bias = None if self.bias is None else getattr(module, self.bias).double()
        return F.layer_norm(x, (self.width,), weight, bias, self.eps)


def norm_of(module: nn.Module) -> Norm | None:
    """The norm that a module of any class but torch's is; None of one that is none, or that a probe cannot
    tell."""
    own = dict(module.named_parameters(recurse=False))
    is_leaf = not any(True for _ in (*module.children(), *module.buffers()))
    kinds = {(each.shape, each.device) for each in own.values()}
    if type(module) in (nn.RMSNorm, nn.LayerNorm) or not is_leaf:
        return None
    if len(own) not in (1, 2) or len(kinds) != 1:
        return None
    ((shape, device),) = kinds
    if len(shape) != 1 or shape[0] < _LEAST_WIDTH or device.type == "meta":
        return None
    return probing.probed(partial(_found, module, shape[0], device), device)


def _found(module: nn.Module, width: int, device: torch.device) -> Norm | None:
    """In fp64, or in fp32 where the module casts what it is given to that beside its parameters."""
    if not probing.takes_one(module):
        return None
    for dtype in (torch.float64, torch.float32):
        copied = probing.stand_in(module, dtype)
        if not isinstance(
            probing.tried(copied, probing.rows((1, width), (1.0,), device).to(dtype)), Tensor
        ):
            continue
        for candidate in _candidates(copied, width, device):
            formula = partial(candidate, copied)
            probes = [probing.rows((*outer, width), _SCALES, device) for outer in _OUTER]
            edges = [probes[0].new_full((1, width), each).to(dtype) for each in (0.0, math.nan)]
            if all(probing.computes(copied, formula, x) for x in probes) and all(
                probing.is_nan_as(copied, formula, x) for x in edges
            ):
                x = probing.rows((6, width), _OF_TYPES, device)
                holds = probing.results(copied, formula, x)
                return replace(candidate, results=holds) if holds.types else None
    return None


def _candidates(module: nn.Module, width: int, device: torch.device) -> Iterator[Norm]:
    """The norms that a stand-in can be, with the epsilon that each would have."""
    names = [name for name, _ in module.named_parameters()]
    for weight, *rest in permutations(names):
        for is_centred, offset in product((True,) if rest else (False, True), (0.0, 1.0)):
            bias = rest[0] if rest else None
            norm = Norm(width=width, is_centred=is_centred, weight=weight, offset=offset, bias=bias)
            eps = _solved(module, norm, device)
            if math.isfinite(eps):
                yield replace(norm, eps=_as_written(module, eps))


def _solved(module: nn.Module, norm: Norm, device: torch.device) -> float:
    """The epsilon with which the norm has the module's results on rows that are tiny beside it."""
    x, weight = probing.rows((8, norm.width), (_TINY,), device), getattr(module, norm.weight)
    bias = None if norm.bias is None else getattr(module, norm.bias)
    held = None if bias is None else bias.detach().clone()
    with torch.no_grad():
        if bias is not None:
            bias.zero_()  # Beside it the digits of so small a result would be lost.
        y = module.forward(x.to(weight.dtype)).double()
        if bias is not None:
            bias.copy_(held)
        centred = x - x.mean(-1, keepdim=True) if norm.is_centred else x
        found = ((weight + norm.offset) * centred / y).square() - centred.square().mean(
            -1, keepdim=True
        )
    return found.median().item()


def _as_written(module: nn.Module, eps: float) -> float:
    """The number that the module was written with, of which a result in fp32 shows some digits."""
    if abs(eps) < _NO_EPSILON:
        return 0.0
    own = (each for each in vars(module).values() if isinstance(each, float))
    near = (each for each in (*own, float(f"{eps:.3g}")) if abs(each - eps) <= _NEAR * eps)
    return next(near, eps)
