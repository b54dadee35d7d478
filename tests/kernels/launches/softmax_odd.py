"""What the softmax kernels are started with for rows that begin inside a vector."""

import torch

from launch import Launch
from peakward.kernels.ops.softmax.triton import softmax, softmax_backward

WIDTHS = (1001, 50257)


def _rows(width: int) -> torch.Tensor:
    return torch.empty(4, width, dtype=torch.bfloat16, device="meta")


def _forward(width: int) -> None:
    softmax(_rows(width), torch.bfloat16)


def _backward(width: int) -> None:
    softmax_backward(_rows(width), _rows(width), torch.bfloat16)


LAUNCHES = {
    f"{name} {width}": Launch(
        lambda start=start, width=width: start(width),
        registers=64,
        shared_bytes=1024,
        # With edges beside a gradient that is read again: 56 at most on sm_90, and 469 µs for 489 in pieces.
        stack_bytes=224 if (name, width) == ("backward", 50257) else 0,
    )
    for name, start in {"forward": _forward, "backward": _backward}.items()
    for width in WIDTHS
}
