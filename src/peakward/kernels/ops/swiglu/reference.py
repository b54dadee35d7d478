"""SwiGLU of a fused projection, SwiGLU and GeGLU of two (Shazeer 2020, equation 6, without its matmuls)."""

import math

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


def gated_product(gate: Tensor, up: Tensor, *, gelu: bool) -> Tensor:
    """silu(gate)·up, or GELU by tanh of it, in at least fp32, rounded once.

    GELU by tanh is gate·sigmoid(2·√(2/π)·(gate + 0.044715·gate³)) (Hendrycks and Gimpel 2016).

    Args:
        gate, up: (…, d_ff) of one type.
    """
    wide = torch.promote_types(gate.dtype, torch.float32)
    gate_wide = gate.to(wide)
    inner = gate_wide
    if gelu:
        inner = 2 * math.sqrt(2 / math.pi) * (gate_wide + 0.044715 * gate_wide**3)
    return (gate_wide * inner.sigmoid() * up.to(wide)).to(gate.dtype)
