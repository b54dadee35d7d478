"""A linear layer whose three products are of fp8 numbers, with one scale per tensor.

Micikevicius et al. 2022, "FP8 formats for deep learning": e4m3 for activations and weights, e5m2 for
gradients, sums in fp32. A tensor is multiplied by a power of two that brings its largest magnitude near the
largest number of the type (`scales`), and what multiplies the product turns that back.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peakward.kernels.ops.fp8_linear.scales import (
    FALL,
    FIRST,
    LEAST_BITS,
    NEXT,
    SHIFT,
    TO_QUARTERS,
    WINDOW,
)
from peakward.kernels.ops.launchable import without_autocast

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
EXPONENT = 0x7F800000
"""The bits of the exponent in fp32."""


def scale_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The fp32 scalar that turns `cast_both`'s numbers back, found on the device: the power of two that
    `cast_delayed` takes of a window with x alone, so that a pass without gradients rounds as the same pass
    with them.

    The norm is one pass without a copy of magnitudes in eager code, and a reduction that Inductor can fuse
    into what computes x. NaN and infinity make the scale NaN.
    """
    amax = torch.linalg.vector_norm(x, float("inf"), dtype=torch.float32)
    # Nothing times what is not finite is NaN.
    return torch.add(delayed_scale(amax.view(torch.int32), dtype), amax, alpha=0)


def cast_rows(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x (m, k) over its scale in fp8: (m, k). Beyond the type's range its largest number."""
    largest = torch.finfo(dtype).max
    return (x.float() * (1 / scale)).clamp(-largest, largest).to(dtype)


def cast_both(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`cast_rows`, and the same transposed: (m, k) and (k, m), both row by row in memory.

    cuBLAS takes fp8 matrices along the dimension that is summed over alone, and each is summed over one of
    its dimensions in the forward pass and over the other in the backward pass.
    """
    rows = cast_rows(x, scale, dtype)
    return rows, rows.t().contiguous()


def delayed_scale(amax_bits: Tensor, dtype: torch.dtype) -> Tensor:
    """The power of two that leaves a largest magnitude, the bits of fp32, its headroom in the type."""
    rounded_up = amax_bits.clamp(min=LEAST_BITS) + (TO_QUARTERS + (SHIFT[dtype] << 23))
    return (rounded_up & EXPONENT).view(torch.float32)


def cast_delayed(x: Tensor, history: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """`cast_both` by the scale of a history (`scales`), which then remembers x's largest magnitude.

    Where x is beyond that scale's range, or fell far below it, the scale is the one that x itself gives; in
    the second case the window forgets what it held. NaN or infinity makes the scale NaN, and is not
    remembered.

    Returns:
        x in fp8 as it is and transposed, and the fp32 scalar that turns it back.
    """
    amax = x.float().abs().amax()
    scale = delayed_scale(history[FIRST:].amax(), dtype)
    if not amax.isfinite():
        return *cast_both(x, scale, dtype), torch.full_like(scale, torch.nan)
    bits = amax.view(torch.int32)
    own = delayed_scale(bits, dtype)
    if amax > 0 and scale > own * 2.0 ** FALL[dtype]:
        history[FIRST:] = 0
        scale = own
    elif amax > scale * torch.finfo(dtype).max:
        scale = own
    place = int(history[NEXT]) % WINDOW
    history[FIRST + place] = bits
    history[NEXT] = (place + 1) % WINDOW
    return *cast_both(x, scale, dtype), scale


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`api.fp8_linear` by torch's own operators: what is multiplied is rounded to fp8 and turned back, and
    the products are those of the types around it. x (…, k), weight (n, k), bias (n,) → (…, n)."""
    y: Tensor = F.linear(_Rounded.apply(x), _Rounded.apply(weight))
    y = _RoundedGradient.apply(y)
    return y if bias is None else y + bias.to(y.dtype)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as fp8 numbers of one scale tell it, in its own type."""
    with without_autocast(x.device):
        scale = scale_of(x, dtype)
        return (cast_rows(x, scale, dtype).float() * scale).to(x.dtype)


class _Rounded(torch.autograd.Function):
    """Rounds to e4m3; the gradient goes on as it is."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return rounded(x, E4M3)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _RoundedGradient(torch.autograd.Function):
    """Rounds the gradient to e5m2."""

    @staticmethod
    def forward(_ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return rounded(gradients[0], E5M2)
