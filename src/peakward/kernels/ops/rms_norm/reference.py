"""Root mean square normalisation (Zhang & Sennrich 2019, equation 4) over the last dimension."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """y = x·r·weight with r = 1/√(mean x² + eps), in at least fp32, y rounded once to x's dtype.

    Args:
        x: (…, width).
        weight: (width,) of any floating type; None for ones.

    Returns:
        y of x's shape, and r of (…, 1) unrounded.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    r = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = wide * r
    return (y if weight is None else y * weight.to(y.dtype)).to(x.dtype), r


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """`rms_norm` of s = x + residual, s rounded to their dtype: y and s."""
    s = x + residual
    return rms_norm(s, weight, eps)[0], s


def rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor | None, r: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x and, in at least fp32, of the weight.

    With n = x·r and g = gradient·weight: r·(g - n·mean(g·n)), and the sum of gradient·n over rows.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    n, gradient = x.to(wide) * r, gradient.to(wide)
    g = gradient if weight is None else gradient * weight.to(wide)
    back = r * (g - n * (g * n).mean(-1, keepdim=True))
    return back.to(x.dtype), (gradient * n).flatten(0, -2).sum(0)
