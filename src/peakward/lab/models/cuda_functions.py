"""Runs functions of torch as CUDA dispatches them, where a CPU takes another way.

While a module is captured its tensors are on a CPU. Two things then differ from CUDA: RMSNorm, which a
CPU takes apart (`cuda_rms_norm`), and mixed precision, whose list of functions that compute in fp32 is
CUDA's own (ATen/autocast_mode.h, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from peakward.lab.models.cuda_rms_norm import rms_norm

_F = nn.functional
RMS_NORMS = (torch.rms_norm, _F.rms_norm)
IN_FP32 = frozenset(
    {
        *RMS_NORMS,
        *(torch.layer_norm, _F.layer_norm, torch.group_norm, _F.group_norm),
        *(torch.softmax, _F.softmax, Tensor.softmax),
        *(torch.log_softmax, _F.log_softmax, Tensor.log_softmax),
        *(_F.cross_entropy, _F.nll_loss, _F.mse_loss, _F.l1_loss, _F.smooth_l1_loss, _F.kl_div),
        *(torch.pow, Tensor.pow, Tensor.__pow__, torch.rsqrt, Tensor.rsqrt),
        *(torch.exp, Tensor.exp, torch.log, Tensor.log, torch.reciprocal, Tensor.reciprocal),
        *(torch.sum, Tensor.sum, torch.prod, Tensor.prod, torch.cumsum, Tensor.cumsum),
        *(torch.norm, Tensor.norm, _F.softplus, _F.cosine_similarity),
    }
)
"""The functions that CUDA's autocast computes in fp32 and a CPU's may not."""


class AsOnCuda(TorchFunctionMode):
    """Runs torch's functions as on CUDA while it is on, as far as they are known here.

    Args:
        mixed: Whether autocast is on around the forward pass.
    """

    def __init__(self, *, mixed: bool) -> None:
        super().__init__()
        self._mixed = mixed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._mixed and func in IN_FP32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map_only(Tensor, _widened, (args, kwargs))
        if func in RMS_NORMS:
            return _normed(func, *args, **kwargs)
        return func(*args, **kwargs)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _normed(
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """RMSNorm over one dimension and of one type in one operator; else as torch takes it apart."""
    over = tuple(normalized_shape)
    if len(over) != 1 or (weight is not None and weight.dtype != input.dtype):
        return func(input, normalized_shape, weight, eps)
    return rms_norm(input, weight)[0]
