"""Gated networks of any class with their product in the kernels of `swiglu`, in place."""

from functools import partial

from torch import Tensor, nn

from peakward.kernels.ops import probing
from peakward.kernels.ops.forwards import Call, Replaced, replace_forwards
from peakward.kernels.ops.gated_modules.behaviour import Gated, by_torch, gated_of
from peakward.kernels.ops.probing import TYPES
from peakward.kernels.ops.swiglu.api import Activation, gated_product, swiglu


def fuse_swiglu(module: nn.Module) -> int:
    """Lets networks that compute down(silu(gate(x)) · up(x)) take the product in one pass, in place.

    They are modules of any class and of any names, found by what they compute, with three projections, and
    then with silu or GELU by tanh, or with two of which one makes both halves. Projections and dropout are
    called as before, with their hooks.

    Returns:
        The number of networks that were changed.
    """
    return replace_swiglu(module).n


def replace_swiglu(module: nn.Module) -> Replaced:
    """Does what `fuse_swiglu` does, and returns what takes it back too."""
    found = probing.found_in(module, gated_of)
    return replace_forwards(found, lambda gated: partial(_fused, gated))


def _fused(gated: Gated, kind: type[nn.Module], _own: Call | None) -> Call:
    """The forward function of modules that are this network."""

    def forward(self: nn.Module, *given: Tensor, **named: Tensor) -> Tensor:
        (x,) = *given, *named.values()
        # What its projections give each other may then have no one type.
        n_types = len({each.dtype for each in self.parameters()})
        if n_types > 1 or any(_is_hooked(self._modules[name]) for name in gated.activations):
            found: Tensor = kind.forward(self, x)
            return found
        return gated(self, x, _product)

    return forward


def _product(gate: Tensor, up: Tensor | None, activation: Activation) -> Tensor:
    is_alike = up is None or (up.dtype, up.shape) == (gate.dtype, gate.shape)
    if gate.dtype not in TYPES or not is_alike:
        return by_torch(gate, up, activation)
    return swiglu(gate) if up is None else gated_product(gate, up, activation=activation)


def _is_hooked(module: nn.Module | None) -> bool:
    """Whether someone looks at what the module is given or gives."""
    assert module is not None
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
