"""Finds gated networks by what they compute: down(silu(gate(x)) · up(x)), or GELU by tanh in the place of
silu, whatever the names of the parts.

A module is probed with stand-ins for its projections, small and of the same widths, so that nothing as large
as its matrices is made. What the projections are, how they are wrapped and what hooks they have is then all
the same: they are called as before.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peakward.kernels.ops import probing
from peakward.kernels.ops.swiglu.api import Activation

_RANK = 4
_SCALES = (1.0, 0.1, 10.0, 30.0)
"""Scales of rows of which fp16 holds the products."""
Product = Callable[[Tensor, Tensor | None, Activation], Tensor]
"""activation(gate)·up, of both apart, or of both side by side in the first."""
_BY_TORCH: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True, kw_only=True)
class Gated:
    """A network, by the names of its parts in the order in which they are called."""

    projections: tuple[str, ...]
    """Two, or one that makes both halves."""
    gates_first: bool
    """Whether the activation is of the first projection, or half."""
    activation: Activation
    between: tuple[str, ...]
    """Dropout of the product."""
    down: str
    after: tuple[str, ...]
    """Dropout of the result."""
    activations: tuple[str, ...]
    """Modules that compute the activation, which the product takes the place of."""

    def __call__(self, module: nn.Module, x: Tensor, product: Product) -> Tensor:
        """The module's result with that product; its parts are called, so that their hooks are."""
        parts = module._modules
        made = [_part(parts, name)(x) for name in self.projections]
        gate, *rest = made if self.gates_first else reversed(made)
        x = product(gate, rest[0] if rest else None, self.activation)
        for name in (*self.between, self.down, *self.after):
            x = _part(parts, name)(x)
        return x


def _part(parts: dict[str, nn.Module | None], name: str) -> Callable[[Tensor], Tensor]:
    found = parts[name]
    assert found is not None
    return found


def by_torch(gate: Tensor, up: Tensor | None, activation: Activation) -> Tensor:
    """The product as torch computes it."""
    if up is None:
        gate, up = gate.chunk(2, dim=-1)
    return _BY_TORCH[activation](gate) * up


def gated_of(module: nn.Module) -> Gated | None:
    """The network that a module of any class is; None of one that is none, or that a probe cannot tell."""
    linear = {name: each for name, each in module.named_children() if _is_linear(each)}
    others = (each for name, each in module.named_children() if name not in linear)
    own = (
        *module.parameters(recurse=False),
        *module.buffers(recurse=False),
        *(held for each in others for held in each.buffers()),
    )
    if own or len(linear) not in (2, 3):
        return None
    device = next((each.device for each in module.parameters()), torch.device("meta"))
    if device.type == "meta":
        return None
    return probing.probed(partial(_found, module, linear, device), device)


def _is_linear(module: nn.Module) -> bool:
    """Whether it says its widths, as nn.Linear and what is put in its place do."""
    widths = (getattr(module, name, None) for name in ("in_features", "out_features"))
    return all(isinstance(each, int) for each in widths)


def _found(module: nn.Module, linear: dict[str, Any], device: torch.device) -> Gated | None:
    if not probing.takes_one(module):
        return None
    stand_ins = {
        name: _StandIn(each.in_features, each.out_features, number, device)
        for number, (name, each) in enumerate(linear.items())
    }
    memo: dict[int, Any] = {id(linear[name]): each for name, each in stand_ins.items()}
    copied = probing.copied(module, memo)
    for each in copied.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.5
    width = next(iter(linear.values())).in_features
    for candidate in _candidates(copied, linear, probing.rows((2, width), (1.0,), device)):
        if _is(candidate, copied, width, device):
            return candidate
    return None


def _candidates(module: nn.Module, linear: dict[str, Any], x: Tensor) -> tuple[Gated, ...]:
    """The networks that a stand-in can be, by the calls that it makes of its parts."""
    calls: list[str] = []
    for name, each in module.named_children():
        each.register_forward_hook(lambda *_, name=name: calls.append(name))
    module.train().double().forward(x)
    for each in module.children():
        each._forward_hooks.clear()
    *projections, down = [name for name in calls if name in linear]
    if len(calls) != len(set(calls)) or len(projections) != len(linear) - 1:
        return ()
    drops = [name for name in calls if isinstance(module.get_submodule(name), nn.Dropout)]
    at = calls.index(down)
    # There is no kernel of halves the other way round, nor of halves with GELU.
    apart = len(projections) > 1
    kinds: tuple[Activation, ...] = get_args(Activation) if apart else ("silu",)
    return tuple(
        Gated(
            projections=tuple(projections),
            gates_first=gates_first,
            activation=activation,
            between=tuple(name for name in drops if calls.index(name) < at),
            down=down,
            after=tuple(name for name in drops if calls.index(name) > at),
            activations=tuple(name for name in calls if name not in (*linear, *drops)),
        )
        for gates_first, activation in product((True, False) if apart else (True,), kinds)
    )


class _StandIn(nn.Module):
    """A projection of low rank, cast by autocast as one of torch's."""

    def __init__(self, n_in: int, n_out: int, number: int, device: torch.device) -> None:
        super().__init__()
        inner = probing.drawn((_RANK, n_in), number) / math.sqrt(n_in)
        outer = probing.drawn((n_out, _RANK), number) / math.sqrt(_RANK)
        self.inner, self.outer = (nn.Parameter(each.to(device)) for each in (inner, outer))

    def forward(self, x: Tensor) -> Tensor:
        """x (…, n_in) as (…, n_out)."""
        return F.linear(F.linear(x, self.inner), self.outer)


def _is(gated: Gated, module: nn.Module, width: int, device: torch.device) -> bool:
    """Whether a stand-in computes what the network does: in fp64, with gradients, in training with what is
    drawn there and in evaluation; and in every type that it can be called in."""
    module.double()
    x = probing.rows((2, 5, width), (*_SCALES, 1e4), device).requires_grad_()
    leaves = (x, *module.parameters())
    for mode in (True, False, True):
        module.train(mode)
        found, right = _both(gated, module, x)
        if not probing.agrees(found, right, probing.VALUES):
            return False
        cotangent = probing.drawn(right.shape, 2).to(device)
        given, wanted = (torch.autograd.grad(each, leaves, cotangent) for each in (found, right))
        pairs = zip(given, wanted, strict=True)
        if not all(probing.agrees(one, other, probing.GRADIENTS) for one, other in pairs):
            return False
    x = probing.rows((4, width), _SCALES, device)
    kinds = product(probing.TYPES, probing.TYPES, probing.CASTS)
    return all(_is_in(gated, module, x, kind) for kind in kinds)


def _is_in(gated: Gated, module: nn.Module, x: Tensor, kind: Any) -> bool:
    """The same in one kind of call, values and the type of the result; also where both refuse it."""
    given, own, cast = kind
    module.to(own)
    try:
        with torch.no_grad(), probing.autocast(x.device, cast):
            found, right = _both(gated, module, x.to(given))
    except RuntimeError:  # torch's products take no two types.
        return _refuses(gated, module, x.to(given), cast)
    coarsest = max(torch.finfo(each).eps for each in kind if each is not None)
    bound = probing.ROUNDINGS * coarsest
    return found.dtype == right.dtype and probing.agrees(found, right, bound)


def _refuses(gated: Gated, module: nn.Module, x: Tensor, cast: torch.dtype | None) -> bool:
    """Whether the network refuses a call too."""
    try:
        with torch.no_grad(), probing.autocast(x.device, cast):
            gated(module, x, by_torch)
    except RuntimeError:
        return True
    return False


def _both(gated: Gated, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The network's result and the module's, with the same draws of dropout."""
    torch.manual_seed(0)
    right = module.forward(x)
    torch.manual_seed(0)
    return gated(module, x, by_torch), right
