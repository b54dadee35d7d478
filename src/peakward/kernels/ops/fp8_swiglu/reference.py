"""SwiGLU whose results go straight into fp8 products, forward and backward.

What SwiGLU makes is not written in 16 bits and read again to be cast: it is rounded once, from fp32.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.fp8_linear.reference import E4M3, E5M2, cast_delayed
from peakward.kernels.ops.swiglu import reference as swiglu


def forward(packed: Tensor, history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """silu(gate)·up of packed (m, 2·d_ff), gate and up side by side, as `cast_delayed` gives it in e4m3:
    (m, d_ff), its transposed and its scale."""
    return cast_delayed(swiglu.swiglu(packed.float()), history, E4M3)


def backward(gradient: Tensor, packed: Tensor, history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of packed from that of the result (m, d_ff), as `cast_delayed` gives it in e5m2: (m,
    2·d_ff), its transposed and its scale."""
    found = swiglu.swiglu_backward(gradient.float(), packed.float())
    return cast_delayed(found.to(torch.float32), history, E5M2)
