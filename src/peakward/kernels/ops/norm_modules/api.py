"""Norms as modules that compute in the kernels of `rms_norm` and `layer_norm`, and a model's norms turned
into them.

Parameters, their names and the types of results stay: a module of torch's is turned into one of these, and
back, by changing its class alone; an RMSNorm of transformers gets another `forward`.
"""

from collections.abc import Iterable
from types import MethodType

import torch
from torch import Tensor, nn

from peakward.kernels.ops.layer_norm.api import add_layer_norm, layer_norm
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

    These are nn.RMSNorm, nn.LayerNorm, and the RMSNorms of transformers that divide by the root mean square
    in fp32 and multiply by a weight.

    Returns:
        The number of norms that were turned.
    """
    return len(fused_norms(module))


def fused_norms(module: nn.Module) -> tuple[nn.Module, ...]:
    """Does what `fuse_norms` does, and returns the norms that it turned."""
    return tuple(each for each in module.modules() if _fuse(each))


def unfuse(norms: Iterable[nn.Module]) -> None:
    """Turns norms of `fused_norms` back into what they were."""
    of_torch = {fused: plain for plain, fused in _OF_TORCH.items()}
    for each in norms:
        if type(each) in of_torch:
            each.__class__ = of_torch[type(each)]
        else:
            del each.forward


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


def _fuse(module: nn.Module) -> bool:
    """Whether it was a norm that there is a kernel for."""
    if (fused := _OF_TORCH.get(type(module))) is not None and len(module.normalized_shape) == 1:  # type: ignore[arg-type]
        module.__class__ = fused
        return True
    if _is_of_transformers(module):
        module.forward = MethodType(_as_transformers, module)
        return True
    return False


def _is_of_transformers(module: nn.Module) -> bool:
    """LlamaRMSNorm and its like. Others, as Gemma's (1 + weight) or those with a gate, name their epsilon
    or themselves otherwise."""
    kind = type(module)
    return (
        kind.__module__.startswith("transformers.")
        and kind.__name__.endswith("RMSNorm")
        and hasattr(module, "variance_epsilon")
        and [name for name, _ in module.named_parameters()] == ["weight"]
    )


def _as_transformers(module: nn.Module, hidden_states: Tensor) -> Tensor:
    """Its result is of the type that the weight and what is normalised have in common."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    eps: float = module.variance_epsilon  # type: ignore[assignment]
    normed = rms_norm(hidden_states, hidden_states.shape[-1:], weight, eps)
    return normed.to(torch.promote_types(weight.dtype, hidden_states.dtype))
