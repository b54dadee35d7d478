"""SwiGLU of a fused projection; SwiGLU and GeGLU of two."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.launchable import require_floats, require_launchable, require_one_device

Activation = Literal["silu", "gelu-tanh"]


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


def gated_product(gate: Tensor, up: Tensor, *, activation: Activation = "silu") -> Tensor:
    """silu(gate)·up of the results of two projections, or gelu(gate)·up, by this room's Triton kernels.

    Args:
        gate, up: (…, d_ff) of one shape and type, in fp32, fp16 or bf16; copied first unless contiguous.
        activation: silu, or gelu-tanh, which is GELU by tanh.

    Returns:
        (…, d_ff) in their type, contiguous. Autocast changes nothing.

    Raises:
        ValueError: two shapes or types, another type or activation, or a device that the kernels cannot run
            on.
    """
    if activation not in get_args(Activation):
        raise ValueError(
            f"gated_product: expected the activation silu or gelu-tanh, got {activation!r}"
        )
    return _gated_product(gate, up, activation == "gelu-tanh")


@operator("peakward::gated_product")
def _gated_product(gate: Tensor, up: Tensor, gelu: bool) -> Tensor:
    require_floats("gated_product", gate=gate, up=up)
    require_launchable("gated_product", gate, up)
    if (gate.shape, gate.dtype) != (up.shape, up.dtype):
        raise ValueError(
            f"gated_product: expected gate and up of one shape and type, got {tuple(gate.shape)} in "
            f"{gate.dtype} and {tuple(up.shape)} in {up.dtype}"
        )
    from peakward.kernels.ops.swiglu import triton

    with torch.cuda.device_of(gate):
        return triton.gated_product(gate, up, gelu=gelu)


@_gated_product.register_fake
def _(gate: Tensor, up: Tensor, _gelu: bool) -> Tensor:
    require_one_device("gated_product", gate, up)
    return gate.new_empty(gate.shape)


@operator("peakward::gated_product_backward")
def _gated_product_backward(
    gradient: Tensor, gate: Tensor, up: Tensor, gelu: bool
) -> tuple[Tensor, Tensor]:
    from peakward.kernels.ops.swiglu import triton

    with torch.cuda.device_of(gate):
        return triton.gated_product_backward(gradient, gate, up, gelu=gelu)


@_gated_product_backward.register_fake
def _(_gradient: Tensor, gate: Tensor, up: Tensor, _gelu: bool) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _save_gated(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's name)
    *tensors, ctx.gelu = inputs
    ctx.save_for_backward(*tensors)


def _backward_gated(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    return *_gated_product_backward(gradient, *ctx.saved_tensors, ctx.gelu), None


_gated_product.register_autograd(_backward_gated, setup_context=_save_gated)


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
