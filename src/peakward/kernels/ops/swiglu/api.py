"""SwiGLU of a fused projection, or of two."""

from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.launchable import require_floats, require_launchable, require_one_device


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


def swiglu_apart(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate)·up of the results of two projections, by this room's Triton kernels.

    Args:
        gate, up: (…, d_ff) of one shape and type, in fp32, fp16 or bf16; copied first unless contiguous.

    Returns:
        (…, d_ff) in their type, contiguous. Autocast changes nothing.

    Raises:
        ValueError: two shapes or types, another type, or a device that the kernels cannot run on.
    """
    return _swiglu_apart(gate, up)


@operator("peakward::swiglu_apart")
def _swiglu_apart(gate: Tensor, up: Tensor) -> Tensor:
    require_floats("swiglu_apart", gate=gate, up=up)
    require_launchable("swiglu_apart", gate, up)
    if (gate.shape, gate.dtype) != (up.shape, up.dtype):
        raise ValueError(
            f"swiglu_apart: expected gate and up of one shape and type, got {tuple(gate.shape)} in "
            f"{gate.dtype} and {tuple(up.shape)} in {up.dtype}"
        )
    from peakward.kernels.ops.swiglu import triton

    with torch.cuda.device_of(gate):
        return triton.swiglu_apart(gate, up)


@_swiglu_apart.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    require_one_device("swiglu_apart", gate, up)
    return gate.new_empty(gate.shape)


@operator("peakward::swiglu_apart_backward")
def _swiglu_apart_backward(gradient: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    from peakward.kernels.ops.swiglu import triton

    with torch.cuda.device_of(gate):
        return triton.swiglu_apart_backward(gradient, gate, up)


@_swiglu_apart_backward.register_fake
def _(_gradient: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _save_apart(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001 (torch's name)
    ctx.save_for_backward(*inputs)


def _backward_apart(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return _swiglu_apart_backward(gradient, *ctx.saved_tensors)


_swiglu_apart.register_autograd(_backward_apart, setup_context=_save_apart)


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
