"""What the AdamW kernel is started with."""

import torch

from launch import Launch
from peakward.kernels.ops.adamw.triton import update

SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def _update(dtype: torch.dtype) -> None:
    tensors = [torch.zeros(1 << 16, dtype=dtype) for _ in range(4)]
    update(*tensors, torch.ones(2), **SETTINGS)


LAUNCHES = {
    "bf16": Launch(lambda: _update(torch.bfloat16), registers=80, shared_bytes=0),
    "fp32": Launch(lambda: _update(torch.float32), registers=80, shared_bytes=0),
}
