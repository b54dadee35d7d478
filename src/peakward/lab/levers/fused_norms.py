"""Lever `fused-norm`: norms in Peakward's own kernels, in the decoder and in a user's module alike.

What a module is, its parameters and their names stay; its norms compute elsewhere. torch's own become
`models.norms`, by their class; transformers' RMSNorms, a class for each model that divides by the root
mean square in fp32 and multiplies by a weight, get another `forward`.
"""

from types import MethodType

import torch
from torch import Tensor, nn

from peakward.kernels.ops.rms_norm.api import rms_norm
from peakward.lab.models.norms import FusedLayerNorm, FusedRMSNorm
from peakward.records.case import Written
from peakward.records.errors import PeakwardError

_OF_TORCH: dict[type[nn.Module], type[nn.Module]] = {
    nn.RMSNorm: FusedRMSNorm,
    nn.LayerNorm: FusedLayerNorm,
}


def apply(module: nn.Module, setting: Written) -> None:
    """Turn every norm over a last dimension into its fused form, in place.

    Raises:
        PeakwardError: the module has none that is known.
    """
    if setting == "torch":
        return
    if not sum(_fuse(each) for each in module.modules()):
        raise PeakwardError(
            f"expected a module with an nn.RMSNorm, an nn.LayerNorm or an RMSNorm of transformers, got "
            f"{type(module).__name__} without: call peakward.kernels.rms_norm in its own norm"
        )


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
