"""Softmax over the last dimension, in place of torch.softmax."""

from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.launchable import FLOATS, require_floats, require_launchable


def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """As torch.softmax, by this room's Triton kernel; the result is contiguous.

    Args:
        x: (…, width) in fp32, fp16 or bf16, of any strides; rows that one stride cannot address are
        copied first, as in torch.
        dim: The last dimension.
        dtype: The type of the result; x's by default. The arithmetic is always in fp32. Autocast
        changes nothing.

    Raises:
        ValueError: Another dimension or type, or a device that the kernel cannot run on.
    """
    if x.dim() == 0 or dim not in (-1, x.dim() - 1):
        raise ValueError(f"softmax: expected the last of {x.dim()} dimensions, got {dim}")
    return _softmax(x, x.dtype if dtype is None else dtype)


@operator("peakward::softmax")
def _softmax(x: Tensor, dtype: torch.dtype) -> Tensor:
    require_floats("softmax", x=x)
    if dtype not in FLOATS:
        raise ValueError(f"softmax: expected a result in float32, float16 or bfloat16, got {dtype}")
    require_launchable("softmax", x)
    from peakward.kernels.ops.softmax import triton

    with torch.cuda.device_of(x):
        return triton.softmax(x, dtype)


@_softmax.register_fake
def _(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@operator("peakward::softmax_backward")
def _softmax_backward(gradient: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    from peakward.kernels.ops.softmax import triton

    with torch.cuda.device_of(y):
        return triton.softmax_backward(gradient, y, dtype)


@_softmax_backward.register_fake
def _(_gradient: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    return y.new_empty(y.shape, dtype=dtype)


def _save(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.dtype = inputs[0].dtype


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (y,) = ctx.saved_tensors
    return _softmax_backward(gradient, y, ctx.dtype), None


_softmax.register_autograd(_backward, setup_context=_save)
