"""A SwiGLU network in fp8, whose SwiGLU writes what its products read."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.fp8_linear.api import (
    cast,
    fp8_linear,
    product,
    require_fp8,
    require_multiples,
)
from peakward.kernels.ops.fp8_linear.reference import E4M3, E5M2
from peakward.kernels.ops.fp8_linear.scales import Scales
from peakward.kernels.ops.launchable import (
    autocast_dtype,
    require_floats,
    require_one_device,
    without_autocast,
)
from peakward.kernels.ops.swiglu.api import swiglu

OP = "fp8_swiglu"


def fp8_swiglu_network(
    x: Tensor, up: Tensor, down: Tensor, up_scales: Scales, down_scales: Scales
) -> Tensor:
    """down(silu(gate)·up) of one projection to gate and up, as `fp8_linear`, `swiglu` and `fp8_linear` with
    these scales compute it, but that SwiGLU and its gradient are rounded to fp8 once, from fp32, and neither
    is ever written in 16 bits.

    Args:
        x: (…, d) in fp32, fp16 or bf16; under autocast it is cast to autocast's type.
        up: (2·d_ff, d), the gate's rows before up's.
        down: (d, d_ff).
        up_scales, down_scales: of `fp8_scales`, each projection's own; they change in place.

    Returns:
        (…, d) in x's type.

    Raises:
        ValueError: as `fp8_linear`, and d_ff no multiple of 16.
    """
    differentiates = any(each.requires_grad for each in (x, up, down))
    if not (torch.is_grad_enabled() and differentiates):
        return fp8_linear(swiglu(fp8_linear(x, up)), down)
    dtype = autocast_dtype(x.device) or x.dtype
    flat = x.to(dtype).reshape(-1, x.shape[-1])
    require_floats(OP, x=flat, up=up, down=down)
    require_multiples(OP, tokens=len(flat), d=flat.shape[1], d_ff=down.shape[1])
    with without_autocast(x.device):
        y: Tensor = _Network.apply(flat, up, down, *up_scales, *down_scales)
    return y.view(x.shape)


class _Network(torch.autograd.Function):
    """x (tokens, d), up (2·d_ff, d), down (d, d_ff) → (tokens, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor, *histories: Tensor) -> Tensor:
        of_x, of_up, of_packed, of_product, of_down, of_y = histories
        x_rows, x_columns, x_scale = cast(x, of_x, E4M3, both=True)
        up_rows, up_columns, up_scale = cast(up, of_up, E4M3, both=True)
        packed = product(x_rows, x_scale, up_rows, up_scale, x.dtype)
        h_rows, h_columns, h_scale = fp8_swiglu(packed, of_product)
        down_rows, down_columns, down_scale = cast(down, of_down, E4M3, both=True)
        ctx.save_for_backward(
            *(x_columns, x_scale, up_columns, up_scale),
            *(packed, h_columns, h_scale, down_columns, down_scale),
        )
        # Not as saved tensors: another backward pass may have changed them in between.
        ctx.histories = of_packed, of_y
        ctx.types = up.dtype, down.dtype
        return product(h_rows, h_scale, down_rows, down_scale, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        x, x_scale, up, up_scale, packed, h, h_scale, down, down_scale = ctx.saved_tensors
        of_packed, of_y = ctx.histories
        needs_x, needs_up, needs_down, *_ = ctx.needs_input_grad
        up_type, down_type = ctx.types
        into_x = into_up = into_down = None
        rows, columns, scale = cast(g, of_y, E5M2, both=True)
        if needs_down:
            into_down = product(_there(columns), scale, h, h_scale, down_type)
        if needs_x or needs_up:
            of_product = product(rows, scale, down, down_scale, g.dtype)
            rows, columns, scale = fp8_swiglu_backward(of_product, packed, of_packed)
            if needs_x:
                into_x = product(rows, scale, up, up_scale, g.dtype)
            if needs_up:
                into_up = product(_there(columns), scale, x, x_scale, up_type)
        return into_x, into_up, into_down, *[None] * 6


def _there(x: Tensor | None) -> Tensor:
    assert x is not None
    return x


@operator(f"peakward::{OP}", mutates=("history",))
def fp8_swiglu(packed: Tensor, history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    require_fp8(OP, packed, history)
    from peakward.kernels.ops.fp8_swiglu import triton

    with torch.cuda.device_of(packed):
        return triton.forward(packed, history)


@fp8_swiglu.register_fake
def _(packed: Tensor, history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    require_one_device(OP, packed, history)
    n_rows, width = packed.shape
    return (
        packed.new_empty((n_rows, width // 2), dtype=E4M3),
        packed.new_empty((width // 2, n_rows), dtype=E4M3),
        packed.new_empty((), dtype=torch.float32),
    )


@operator(f"peakward::{OP}_backward", mutates=("history",))
def fp8_swiglu_backward(
    gradient: Tensor, packed: Tensor, history: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    require_fp8(OP, packed, history)
    from peakward.kernels.ops.fp8_swiglu import triton

    with torch.cuda.device_of(packed):
        return triton.backward(gradient, packed, history)


@fp8_swiglu_backward.register_fake
def _(gradient: Tensor, packed: Tensor, history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    require_one_device(OP, gradient, packed, history)
    n_rows, width = packed.shape
    return (
        packed.new_empty((n_rows, width), dtype=E5M2),
        packed.new_empty((width, n_rows), dtype=E5M2),
        packed.new_empty((), dtype=torch.float32),
    )
