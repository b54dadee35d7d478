"""What the softmax kernels are started with for rows that begin inside a vector."""

import torch

from launch import Launch
from peakward.lab.ops.softmax.triton import softmax, softmax_backward

WIDTH = 50257


def _rows() -> torch.Tensor:
    return torch.empty(4, WIDTH, dtype=torch.bfloat16, device="meta")


LAUNCHES = {
    "forward": Launch(lambda: softmax(_rows(), torch.bfloat16), registers=64, shared_bytes=1024),
    "backward": Launch(
        lambda: softmax_backward(_rows(), _rows(), torch.bfloat16), registers=64, shared_bytes=1024
    ),
}
