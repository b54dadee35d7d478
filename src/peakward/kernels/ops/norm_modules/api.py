"""Norms as modules that compute in the kernels of `rms_norm` and `layer_norm`, and a model's norms turned
into them.

Parameters, their names and the types of results stay: a module of torch's is turned into one of these, and
back, by changing its class alone; one of another class gets another `forward`.
"""

import warnings
from functools import partial

import torch
from torch import Tensor, nn

from peakward.kernels.ops import probing
from peakward.kernels.ops.forwards import Call, Replaced, replace_forwards
from peakward.kernels.ops.layer_norm.api import add_layer_norm, layer_norm
from peakward.kernels.ops.norm_modules.behaviour import Norm, norm_of
from peakward.kernels.ops.probing import Results, Types
from peakward.kernels.ops.rms_norm.api import add_rms_norm, rms_norm


class FusedRMSNorm(nn.RMSNorm):
    """Over the last dimension."""

    def forward(  # type: ignore[override]  # A call of the module, so that what it runs is known as its own.
        self, x: Tensor, added: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The norm of x; with `added`, of x's type, the norm of the sum, and the sum."""
        if added is None:
            return rms_norm(as_autocast(x), self.normalized_shape, self.weight, self.eps)
        return add_rms_norm(added, x, self.weight, self.eps)


class FusedLayerNorm(nn.LayerNorm):
    """Over the last dimension."""

    def forward(  # type: ignore[override]  # A call of the module, so that what it runs is known as its own.
        self, x: Tensor, added: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """See `FusedRMSNorm`."""
        if added is None:
            x = as_autocast(x)
            return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return add_layer_norm(added, x, self.weight, self.bias, self.eps)


FusedNorm = FusedRMSNorm | FusedLayerNorm
_OF_TORCH: dict[type[nn.Module], type[nn.Module]] = {
    nn.RMSNorm: FusedRMSNorm,
    nn.LayerNorm: FusedLayerNorm,
}


def fuse_norms(module: nn.Module) -> int:
    """Turns every norm over a last dimension into its fused form, in place.

    These are nn.RMSNorm and nn.LayerNorm, and modules of any class that compute one of both, found by what
    they compute (`behaviour`). Of these, calls of types in which they do something else stay as they are,
    attributes that one is given later, as another epsilon, are not seen, and what it writes beside its result
    is left out.

    Returns:
        The number of norms that were turned.
    """
    return replace_norms(module).n


def replace_norms(module: nn.Module) -> Replaced:
    """Does what `fuse_norms` does, and returns what takes it back too."""
    of_torch = [each for each in module.modules() if _is_of_torch(each)]
    others = replace_forwards(probing.found_in(module, norm_of), lambda norm: partial(_fused, norm))
    for each in of_torch:
        each.__class__ = _OF_TORCH[type(each)]

    def undo() -> None:
        plain = {fused: kind for kind, fused in _OF_TORCH.items()}
        for each in of_torch:
            if type(each) in plain:
                each.__class__ = plain[type(each)]
            else:
                warnings.warn(
                    f"a norm stays fused: its class was made {type(each).__name__} since, as by a "
                    "parametrization or fully_shard; undo before that",
                    stacklevel=2,
                )
        others.undo()

    return Replaced(len(of_torch) + others.n, undo)


def of_sum(norm: FusedNorm, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """x + added, and the norm of the sum. It is one pass where both have one type; under autocast the
    residual stream and the addend have different types."""
    if x.dtype == added.dtype:
        normed, x = norm(x, added)
        return x, normed
    x = x + added
    return x, norm(x)


def as_autocast(x: Tensor) -> Tensor:
    """x in fp32 under autocast, because CUDA computes norms so (ATen/autocast_mode.h, AT_FORALL_FP32)."""
    return x.float() if torch.is_autocast_enabled(x.device.type) else x


def _is_of_torch(module: nn.Module) -> bool:
    return type(module) in _OF_TORCH and len(module.normalized_shape) == 1  # type: ignore[arg-type]


def _fused(norm: Norm, kind: type[nn.Module], _own: Call | None) -> Call:
    """The forward function of modules that are this norm."""
    types = Types(norm.results, _results_of)

    def forward(self: nn.Module, *given: Tensor, **named: Tensor) -> Tensor:
        (x,) = *given, *named.values()
        weight: Tensor = getattr(self, norm.weight)
        dtype = types.of(self, x, weight.dtype)
        bias = None if norm.bias is None else getattr(self, norm.bias)
        is_mixed = bias is not None and bias.dtype != weight.dtype
        if dtype is None or is_mixed or x.shape[-1:] != weight.shape:
            found: Tensor = kind.forward(self, x)
            return found
        if norm.offset:
            weight = weight.float() + norm.offset
        # In the wider of both types, so that nothing is rounded twice.
        x = x.to(torch.promote_types(x.dtype, dtype))
        if not norm.is_centred:
            return rms_norm(x, weight.shape, weight, norm.eps).to(dtype)
        return layer_norm(x, weight.shape, weight, bias, norm.eps).to(dtype)

    return forward


def _results_of(module: nn.Module, _device: torch.device) -> Results | None:
    norm = norm_of(module)
    return None if norm is None else norm.results
