"""Linear layers in fp8, for training too."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.fp8_linear.reference import E4M3, E5M2, scale_of
from peakward.kernels.ops.fp8_linear.scales import LENGTH, Scales
from peakward.kernels.ops.launchable import (
    autocast_dtype,
    require_floats,
    require_launchable,
    require_one_device,
    without_autocast,
)

OP = "fp8_linear"
LEAST_CAPABILITY = (8, 9)
SIDE = 16
"""Tokens and both widths are multiples of it, for cuBLAS."""


def fp8_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, scales: Scales | None = None
) -> Tensor:
    """F.linear whose product, and both of its backward pass, are of fp8 numbers.

    x and the weight are scaled and cast to e4m3, each gradient to e5m2, with one scale per tensor. A cast
    writes the matrix and its transposed at once; the backward pass keeps the transposed ones of x and the
    weight, a byte an element, and not x.

    Without `scales` each tensor is read once more, at every use, for its largest magnitude. Under
    torch.compile this search is the compiler's, which can fuse it into what makes the tensor, and layers that
    share x share its cast. With `scales` a call that a gradient is asked of takes the scales of the layer's
    last 16 such calls, and the cast finds the new largest magnitude in the same pass. What is beyond its
    scale's range, as at the first call, or far below it, as after an outlier, is cast a second time: no
    number saturates, none loses its digits. A call without gradients
    neither reads `scales` nor changes them.

    Args:
        x: (…, k) in fp32, fp16 or bf16; under autocast it is cast to autocast's type.
        weight: (n, k) in one of these types.
        bias: (n,), added in x's type.
        scales: this layer's own, from `fp8_scales`; they change in place, on the device.

    Returns:
        (…, n) in x's type. The weight's gradient is in the weight's type, from the product on.

    Raises:
        ValueError: tokens, k or n that are no multiples of 16, another type, or a device that has no e4m3.
    """
    n_tokens, sides = math.prod(x.shape[:-1]), (x.shape[-1], weight.shape[0])
    require_multiples(OP, tokens=n_tokens, inputs=sides[0], outputs=sides[1])
    dtype = autocast_dtype(x.device) or x.dtype
    flat = x.to(dtype).reshape(-1, x.shape[-1])
    require_floats(OP, x=flat, weight=weight)
    differentiates = torch.is_grad_enabled()
    needs = tuple(differentiates and each.requires_grad for each in (x, weight))
    histories = (None, None, None) if scales is None or not any(needs) else scales
    # Autocast would have the largest magnitude found in a copy in fp32.
    with without_autocast(x.device):
        y: Tensor = _Fp8Linear.apply(flat, weight, bias, *needs, *histories)
    return y.view(*x.shape[:-1], -1)


def fp8_scales(device: torch.device | str) -> Scales:
    """Delayed scales of one linear layer that have seen nothing, for `fp8_linear`.

    Args:
        device: the layer's.

    Returns:
        The histories of x, the weight and the gradient, int32 (19,) each. They are state, as a running mean
        is: keep them beside the weight. Of a layer that moves or is left without contents (`to_empty`) make
        new ones. What they hold after a step depends on its numbers alone.
    """
    return Scales(*(torch.zeros(LENGTH, dtype=torch.int32, device=device) for _ in range(3)))


class _Fp8Linear(torch.autograd.Function):
    """x (tokens, k), weight (n, k) → (tokens, n)."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd takes no keywords)
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        of_x: bool,
        of_weight: bool,
        x_history: Tensor | None,
        w_history: Tensor | None,
        g_history: Tensor | None,
    ) -> Tensor:
        # The weight's gradient needs x transposed, that of x the weight.
        x_rows, x_columns, x_scale = cast(x, x_history, E4M3, both=of_weight)
        w_rows, w_columns, w_scale = cast(weight, w_history, E4M3, both=of_x)
        ctx.save_for_backward(x_columns, x_scale, w_columns, w_scale)
        # Not as a saved tensor: another backward pass of the layer may have changed it in between.
        ctx.g_history = g_history
        ctx.weight_dtype = weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        y = product(x_rows, x_scale, w_rows, w_scale, x.dtype)
        return y if bias is None else y + bias.to(y.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        x_columns, x_scale, w_columns, w_scale = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        rows, columns, g_scale = cast(g, ctx.g_history, E5M2, both=x_columns is not None)
        if w_columns is not None:
            of_x = product(rows, g_scale, w_columns, w_scale, g.dtype)
        if x_columns is not None:
            assert columns is not None
            of_weight = product(columns, g_scale, x_columns, x_scale, ctx.weight_dtype)
        if ctx.bias_dtype is not None:
            of_bias = g.sum(0).to(ctx.bias_dtype)
        return of_x, of_weight, of_bias, None, None, None, None, None


def cast(
    x: Tensor, history: Tensor | None, dtype: torch.dtype, *, both: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """x (m, k) in fp8, its transposed if `both`, and its scale: the history's, or x's own without one."""
    if history is not None:
        if both:
            return fp8_delayed_both(x, history, dtype)
        rows, scale = fp8_delayed_rows(x, history, dtype)
        return rows, None, scale
    scale = scale_of(x, dtype)
    if both:
        return *fp8_both(x, scale, dtype), scale
    return fp8_rows(x, scale, dtype), None, scale


def product(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """a (m, k) times the transposed of b (n, k): both lie along what is summed over, as cuBLAS has it."""
    return torch._scaled_mm(a, b.t(), a_scale, b_scale, out_dtype=dtype, use_fast_accum=True)


@operator(f"peakward::{OP}_both")
def fp8_both(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    require_fp8(OP, x, scale)
    from peakward.kernels.ops.fp8_linear import triton

    with torch.cuda.device_of(x):
        return triton.cast_both(x, scale, dtype)


@fp8_both.register_fake
def _(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    require_one_device(OP, x, scale)
    n_rows, n_columns = x.shape
    return (
        x.new_empty((n_rows, n_columns), dtype=dtype),
        x.new_empty((n_columns, n_rows), dtype=dtype),
    )


@operator(f"peakward::{OP}_rows")
def fp8_rows(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    require_fp8(OP, x, scale)
    from peakward.kernels.ops.fp8_linear import triton

    with torch.cuda.device_of(x):
        return triton.cast_rows(x, scale, dtype)


@fp8_rows.register_fake
def _(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    require_one_device(OP, x, scale)
    return x.new_empty(tuple(x.shape), dtype=dtype)


@operator(f"peakward::{OP}_delayed_both", mutates=("history",))
def fp8_delayed_both(
    x: Tensor, history: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    require_fp8(OP, x, history)
    from peakward.kernels.ops.fp8_linear import triton

    with torch.cuda.device_of(x):
        return triton.cast_delayed_both(x, history, dtype)


@fp8_delayed_both.register_fake
def _(x: Tensor, history: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    require_one_device(OP, x, history)
    n_rows, n_columns = x.shape
    return (
        x.new_empty((n_rows, n_columns), dtype=dtype),
        x.new_empty((n_columns, n_rows), dtype=dtype),
        x.new_empty((), dtype=torch.float32),
    )


@operator(f"peakward::{OP}_delayed_rows", mutates=("history",))
def fp8_delayed_rows(x: Tensor, history: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    require_fp8(OP, x, history)
    from peakward.kernels.ops.fp8_linear import triton

    with torch.cuda.device_of(x):
        return triton.cast_delayed_rows(x, history, dtype)


@fp8_delayed_rows.register_fake
def _(x: Tensor, history: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    require_one_device(OP, x, history)
    return x.new_empty(tuple(x.shape), dtype=dtype), x.new_empty((), dtype=torch.float32)


def require_multiples(op: str, **sides: int) -> None:
    """
    Raises:
        ValueError: a side that cuBLAS does not take of a matrix in fp8.
    """
    for name, each in sides.items():
        if each % SIDE or each == 0:
            raise ValueError(f"{op}: expected {name} in multiples of {SIDE}, got {each}")


def require_fp8(op: str, x: Tensor, beside: Tensor) -> None:
    """
    Raises:
        ValueError: x in another type than fp32, fp16 and bf16, or tensors where no kernel can write e4m3.
    """
    require_floats(op, x=x)
    require_launchable(op, x, beside)
    if x.is_cuda and (found := torch.cuda.get_device_capability(x.device)) < LEAST_CAPABILITY:
        raise ValueError(
            f"{op}: expected a GPU of compute capability 8.9 or later, which has e4m3, got "
            f"{found[0]}.{found[1]} ({torch.cuda.get_device_name(x.device)})"
        )
