"""Stand-ins for RMSNorm as CUDA computes it: one operator each way, where a CPU takes it apart.

torch has `_fused_rms_norm` for CUDA; on a CPU RMSNorm is five operators, and eighteen in the backward
pass. These operators take their place while a module is captured. They have shapes and no arithmetic.
"""

from typing import Any

import torch
from torch import Tensor

AS_ON_CUDA = {
    "peakward.rms_norm": "aten._fused_rms_norm",
    "peakward.rms_norm_backward": "aten._fused_rms_norm_backward",
}
"""The CUDA operator that each of them stands for."""


@torch.library.custom_op("peakward::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """x normalised over its last dimension, and the reciprocal root mean square of each row."""
    raise NotImplementedError


@rms_norm.register_fake
def _(x: Tensor, _weight: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@torch.library.custom_op("peakward::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    gradient: Tensor, x: Tensor, rstd: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weight; without a weight the latter is empty."""
    raise NotImplementedError


@rms_norm_backward.register_fake
def _(_gradient: Tensor, x: Tensor, _rstd: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    own = x.new_empty(0) if weight is None else torch.empty_like(weight)
    return torch.empty_like(x), own


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: Any) -> None:
    x, weight = inputs
    ctx.save_for_backward(x, output[1], weight)
    ctx.has_weight = weight is not None


def _backward(ctx: Any, gradient: Tensor, _rstd: Tensor) -> tuple[Tensor, Tensor | None]:
    x, own = rms_norm_backward(gradient, *ctx.saved_tensors)
    return x, own if ctx.has_weight else None


rms_norm.register_autograd(_backward, setup_context=_save)
