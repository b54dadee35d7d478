"""What the softmax kernels are started with."""

import torch

from launch import Launch
from peakward.kernels.ops.softmax.triton import softmax, softmax_backward

WIDTHS = (1000, 8192, 32768, 36000, 65536, 131072)


def _forward(width: int, dtype: torch.dtype) -> None:
    softmax(torch.empty(4, width, dtype=dtype, device="meta"), dtype)


def _backward(width: int, dtype: torch.dtype) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    softmax_backward(rows, rows, dtype)


LAUNCHES = {
    f"{name} {width} {dtype}": Launch(
        lambda start=start, width=width, dtype=dtype: start(width, dtype),
        registers=64,
        shared_bytes=1024,
        # Of the widest rows whose gradient is read again.
        stack_bytes=64 if name == "backward" and width in (32768, 36000, 65536) else 0,
    )
    for name, start in {"forward": _forward, "backward": _backward}.items()
    for width in WIDTHS
    for dtype in (torch.bfloat16, torch.float32)
}
