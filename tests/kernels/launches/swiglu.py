"""What the SwiGLU kernels are started with."""

import torch

from launch import Launch
from peakward.kernels.ops.swiglu.triton import (
    gated_product,
    gated_product_backward,
    swiglu,
    swiglu_backward,
)

WIDTHS = (1000, 8192, 11008)


def _both(d_ff: int, dtype: torch.dtype) -> None:
    x = torch.empty(4, 2 * d_ff, dtype=dtype, device="meta")
    swiglu_backward(swiglu(x), x)


def _apart(dtype: torch.dtype, gelu: bool) -> None:
    gate = torch.empty(4, 1000, dtype=dtype, device="meta")
    gated_product_backward(gated_product(gate, gate, gelu=gelu), gate, gate, gelu=gelu)


LAUNCHES = {
    f"{width} {dtype}": Launch(
        lambda width=width, dtype=dtype: _both(width, dtype), registers=64, shared_bytes=0
    )
    for width in WIDTHS
    for dtype in (torch.bfloat16, torch.float32)
} | {
    f"apart {dtype} {gelu}": Launch(
        lambda dtype=dtype, gelu=gelu: _apart(dtype, gelu),
        registers=96 if gelu else 64,
        shared_bytes=0,
    )
    for dtype in (torch.bfloat16, torch.float32)
    for gelu in (False, True)
}
