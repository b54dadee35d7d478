"""SwiGLU of a fused projection (Shazeer 2020, equation 6, without its matmuls)."""

import torch
from torch import Tensor


def swiglu(x: Tensor) -> Tensor:
    """silu(gate)·up in at least fp32, rounded once: (…, d_ff) in x's dtype.

    Args:
        x: (…, 2·d_ff), the gate's columns before up's, as the reference decoder lays them out.
    """
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return (gate / (1 + (-gate).exp()) * up).to(x.dtype)


def swiglu_backward(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of x, from x alone: with s = sigmoid(gate), gradient·up·s·(1 + gate·(1 - s)) of
    the gate and gradient·gate·s of up."""
    wide = torch.promote_types(x.dtype, torch.float32)
    gate, up = x.to(wide).chunk(2, dim=-1)
    s = gate.sigmoid()
    gradient = gradient.to(wide)
    parts = (gradient * up * s * (1 + gate * (1 - s)), gradient * gate * s)
    return torch.cat(parts, dim=-1).to(x.dtype)
