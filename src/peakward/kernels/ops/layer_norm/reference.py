"""Layer normalisation (Ba et al. 2016, equation 4) over the last dimension."""

import torch
from torch import Tensor


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - m)·r·weight + bias with m the mean of x and r = 1/√(mean (x - m)² + eps).

    In at least fp32, y rounded once to x's dtype.

    Args:
        x: (…, width).
        weight, bias: (width,) of any floating type; None for ones and zeros.

    Returns:
        y of x's shape, and m and r of (…, 1) unrounded.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(-1, keepdim=True)
    r = ((wide - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (wide - mean) * r
    if weight is not None:
        y = y * weight.to(y.dtype)
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y.to(x.dtype), mean, r


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """`layer_norm` of s = x + residual, s rounded to their dtype: y and s."""
    s = x + residual
    return layer_norm(s, weight, bias, eps)[0], s


def layer_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, r: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x and, in at least fp32, of weight and bias.

    With n = (x - m)·r and g = gradient·weight: r·(g - mean g - n·mean(g·n)), and the sums of
    gradient·n and of gradient over rows.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    n, gradient = (x.to(wide) - mean) * r, gradient.to(wide)
    g = gradient if weight is None else gradient * weight.to(wide)
    back = r * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))
    sums = ((gradient * n).flatten(0, -2).sum(0), gradient.flatten(0, -2).sum(0))
    return back.to(x.dtype), *sums
