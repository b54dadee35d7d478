"""What the chain of loads is started with."""

import torch

from launch import Launch
from peakward.kernels.ops.pointer_chase.triton import chase


def _chase() -> None:
    chase(torch.zeros(64, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), 1000)


LAUNCHES = {"chase": Launch(_chase, registers=32, shared_bytes=0)}
