"""Activations that modules write out, as one call of torch: GELU in both of its forms, and SiLU.

NewGELU of minGPT and of transformers is eight operators of torch, each of which reads and writes the widest
tensors of a model; backward has as many again, and keeps what they make.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.kernels.ops import probing
from peakward.kernels.ops.forwards import Call, Replaced, replace_forwards
from peakward.kernels.ops.probing import Results, Types

_CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu of tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
}
_FAR = (50.0, 1e4)
"""Values at which what is clipped differs."""


class Activation(NamedTuple):
    """An activation that a module writes out."""

    name: str
    results: Results
    """The kinds of calls in which it is this activation, with the types of results."""


def fuse_activations(module: nn.Module) -> int:
    """Lets modules that write out GELU or SiLU call torch's, in place.

    They are modules of any class, found by what they compute: GELU by tanh or by erf, or SiLU, in more than
    one operator. Calls of types in which they do something else stay as they are. Attributes that one is
    given later are not seen, and what it writes beside its result is left out.

    Returns:
        The number of modules that were changed.
    """
    return replace_activations(module).n


def replace_activations(module: nn.Module) -> Replaced:
    """Does what `fuse_activations` does, and returns what takes it back too."""
    device = next((each.device for each in module.parameters()), torch.device("cpu"))
    found = probing.found_in(module, lambda each: activation_of(each, device))
    return replace_forwards(found, lambda what: partial(_called, what))


def activation_of(module: nn.Module, device: torch.device) -> Activation | None:
    """The activation that a module of any class writes out; None of any other, and of one call of torch."""
    holds = any(True for _ in (*module.children(), *module.buffers(), *module.parameters()))
    if holds or type(module).__module__.startswith("torch.nn.") or device.type == "meta":
        return None
    return probing.probed(partial(_found, module, device), device)


def _found(module: nn.Module, device: torch.device) -> Activation | None:
    if not probing.takes_one(module):
        return None
    copied = probing.stand_in(module, torch.float64)
    values = torch.linspace(-20, 20, 1601, dtype=torch.float64, device=device)
    far = torch.tensor([sign * each for each in _FAR for sign in (1, -1)])
    # Each in a row of ones, so that the digits that are lost where the result is nearly 0 do not count.
    x = torch.cat((values, far.to(values)))[:, None]
    x = torch.cat((x, torch.ones_like(x).expand(-1, 7)), -1)
    for name, call in _CALLS.items():
        if probing.computes(copied, call, x) and probing.is_nan_as(copied, call, x * torch.nan):
            return _written_out(copied, name, call, x)
    return None


def _written_out(
    module: nn.Module, name: str, call: Callable[[Tensor], Tensor], x: Tensor
) -> Activation | None:
    x = x.detach()
    with _Calls() as calls:
        module.forward(x)
    if calls.n == 1:
        return None
    results = probing.results(module, call, x)
    return Activation(name, results) if results.types else None


class _Calls(TorchDispatchMode):
    """Counts operators."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += 1
        return func(*args, **(kwargs or {}))


def _called(activation: Activation, kind: type[nn.Module], _own: Call | None) -> Call:
    """The forward function of modules that are this activation."""
    types, call = Types(activation.results, _results_of), _CALLS[activation.name]

    def forward(self: nn.Module, *given: Tensor, **named: Tensor) -> Tensor:
        (x,) = *given, *named.values()
        dtype = types.of(self, x, None)
        if dtype is None:
            found: Tensor = kind.forward(self, x)
            return found
        return call(x.to(torch.promote_types(x.dtype, dtype))).to(dtype)

    return forward


def _results_of(module: nn.Module, device: torch.device) -> Results | None:
    activation = activation_of(module, device)
    return None if activation is None else activation.results
