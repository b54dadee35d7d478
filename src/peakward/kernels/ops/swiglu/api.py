"""SwiGLU of a fused projection."""

from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.launchable import require_floats, require_launchable


def swiglu(x: Tensor) -> Tensor:
    """silu(gate)·up for `gate, up = x.chunk(2, dim=-1)`, by this room's Triton kernels.

    Args:
        x: (…, 2·d_ff) in fp32, fp16 or bf16, of any strides; rows that one stride cannot address
            are copied first.

    Returns:
        (…, d_ff) in x's type, contiguous. Autocast changes nothing.

    Raises:
        ValueError: an odd width, another type, or a device that the kernels cannot run on.
    """
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(
            f"swiglu: expected gate and up of one width side by side, got shape {tuple(x.shape)}"
        )
    return _swiglu(x)


@operator("peakward::swiglu")
def _swiglu(x: Tensor) -> Tensor:
    require_floats("swiglu", x=x)
    require_launchable("swiglu", x)
    from peakward.kernels.ops.swiglu import triton

    with torch.cuda.device_of(x):
        return triton.swiglu(x)


@_swiglu.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


@operator("peakward::swiglu_backward")
def _swiglu_backward(gradient: Tensor, x: Tensor) -> Tensor:
    from peakward.kernels.ops.swiglu import triton

    with torch.cuda.device_of(x):
        return triton.swiglu_backward(gradient, x)


@_swiglu_backward.register_fake
def _(_gradient: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001 (torch's name)
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> Tensor:
    return _swiglu_backward(gradient, *ctx.saved_tensors)


_swiglu.register_autograd(_backward, setup_context=_save)
