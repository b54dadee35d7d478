"""What the SwiGLU kernels are started with."""

import torch

from launch import Launch
from peakward.kernels.ops.swiglu.triton import (
    swiglu,
    swiglu_apart,
    swiglu_apart_backward,
    swiglu_backward,
)

WIDTHS = (1000, 8192, 11008)


def _both(d_ff: int, dtype: torch.dtype) -> None:
    x = torch.empty(4, 2 * d_ff, dtype=dtype, device="meta")
    swiglu_backward(swiglu(x), x)


def _apart(dtype: torch.dtype) -> None:
    gate = torch.empty(4, 1000, dtype=dtype, device="meta")
    swiglu_apart_backward(swiglu_apart(gate, gate), gate, gate)


LAUNCHES = {
    f"{width} {dtype}": Launch(
        lambda width=width, dtype=dtype: _both(width, dtype), registers=64, shared_bytes=0
    )
    for width in WIDTHS
    for dtype in (torch.bfloat16, torch.float32)
} | {
    f"apart {dtype}": Launch(lambda dtype=dtype: _apart(dtype), registers=64, shared_bytes=0)
    for dtype in (torch.bfloat16, torch.float32)
}
