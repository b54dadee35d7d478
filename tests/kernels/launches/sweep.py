"""What sweeps of a working set are started with."""

import torch

from launch import Launch
from peakward.kernels.ops.sweep.triton import BLOCK, sweep

LAUNCHES = {
    "sweep": Launch(lambda: sweep(torch.zeros(4 * BLOCK), 2, 8), registers=64, shared_bytes=0)
}
