"""Runs functions of torch as CUDA dispatches them, where a CPU takes another way.

While a module is captured its tensors are on a CPU. Five things then differ from CUDA: RMSNorm and dropout,
which a CPU takes apart; attention, for which CUDA has other kernels (`cuda_attention`); mixed precision,
whose list of functions that compute in fp32 is CUDA's own (ATen/autocast_mode.h, AT_FORALL_FP32 and
AT_FORALL_FP32_SET_OPT_DTYPE); and tensors of numbers, which are copied to the device.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from peakward.hardware.attention_backend import ComputeCapability
from peakward.lab.models.cuda_attention import Call, attention

_F = nn.functional
RMS_NORMS = (torch.rms_norm, _F.rms_norm)
DROPOUTS = (torch.dropout, _F.dropout)
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
OF_NUMBERS = (torch.tensor, torch.as_tensor, Tensor.new_tensor)
"""The functions that make a tensor of numbers on the host, and then copy it to the device that is named."""


class AsOnCuda(TorchFunctionMode):
    """Runs torch's functions as on CUDA while it is on, as far as they are known here.

    Args:
        compute_capability: The GPU's, on which the kernel of attention depends.
        on_copy: Is given each tensor that is copied from the host. There the host waits for a GPU.
    """

    def __init__(
        self, compute_capability: ComputeCapability, on_copy: Callable[[Tensor], None]
    ) -> None:
        super().__init__()
        self._compute_capability = compute_capability
        self._on_copy = on_copy

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        mixed = torch.is_autocast_enabled("cpu")
        if mixed and func in IN_FP32:
            args, kwargs = tree_map_only(Tensor, _widened, (args, kwargs))
        if func in RMS_NORMS:
            return _normed(func, *args, **kwargs)
        if func in DROPOUTS:
            return _dropped(func, *args, **kwargs)
        if func is _F.scaled_dot_product_attention:
            if mixed:
                args, kwargs = tree_map_only(Tensor, _narrowed, (args, kwargs))
            with torch.autocast("cpu", enabled=False):
                return attention(Call(*args, **kwargs), self._compute_capability)
        made = func(*args, **kwargs)
        if func in OF_NUMBERS and _is_copied(func, args, kwargs):
            self._on_copy(made)
        return made


@contextmanager
def autocast_for_cuda() -> Iterator[None]:
    """While it lasts, autocast for CUDA is on for stand-ins on a CPU. Without a GPU torch would
    leave it off."""
    made = torch.autocast.__init__

    def make(self: torch.autocast, device_type: str, dtype: Any = None, **settings: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        made(self, device_type, dtype, **settings)

    with patch.object(torch.autocast, "__init__", make):
        yield


def _is_copied(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether numbers go to the device of a stand-in, which code asks for by an object; by name it asks for
    the host, as AdamW does for its counts of steps."""
    likes_another = func is Tensor.new_tensor
    device, given = kwargs.get("device"), (*args[likes_another:], *kwargs.values())
    if device == "cpu" or any(isinstance(each, Tensor) for each in given):
        return False
    return likes_another or device is not None


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _narrowed(tensor: Tensor) -> Tensor:
    return tensor.to(torch.get_autocast_dtype("cpu")) if tensor.dtype == torch.float32 else tensor


def _dropped(
    func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """Dropout of CUDA, one operator that keeps a mask of bool; in place it is the same as a CPU's."""
    if inplace or not training or not 0 < p < 1 or not input.numel():
        inplace_too = {"inplace": inplace} if func is _F.dropout else {}
        return func(input, p, training, **inplace_too)
    return torch.ops.aten.native_dropout(input, p, True)[0]


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


# Stand-ins for RMSNorm as CUDA computes it. torch has `_fused_rms_norm` for CUDA; on a CPU RMSNorm is five
# operators, and eighteen in the backward pass. These two take their place while a module is captured. They
# have shapes and no arithmetic.

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
    ctx.set_materialize_grads(
        False
    )  # Of the second result nobody asks a gradient: CUDA makes no zeros.
    ctx.save_for_backward(x, output[1], weight)
    ctx.has_weight = weight is not None


def _backward(ctx: Any, gradient: Tensor, _rstd: Tensor) -> tuple[Tensor, Tensor | None]:
    x, own = rms_norm_backward(gradient, *ctx.saved_tensors)
    return x, own if ctx.has_weight else None


rms_norm.register_autograd(_backward, setup_context=_save)
