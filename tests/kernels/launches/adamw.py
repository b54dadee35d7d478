"""What the AdamW kernels are started with."""

import torch

from launch import Launch
from peakward.kernels.ops.adamw import stored
from peakward.kernels.ops.adamw.triton import update, update_8bit, update_bf16

SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
N = 1 << 16
RANDOM = {"seed": 0, "number": 1}


def _update(dtype: torch.dtype) -> None:
    tensors = [torch.zeros(N, dtype=dtype) for _ in range(4)]
    update(*tensors, torch.ones(2), **SETTINGS)


def _bf16() -> None:
    moments = [torch.zeros(N, dtype=torch.bfloat16) for _ in range(2)]
    tensors = (torch.zeros(N), torch.zeros(N), *moments)
    update_bf16(*tensors, torch.ones(2), torch.ones(()), **RANDOM, **SETTINGS)


def _8bit() -> None:
    moments = [
        (torch.zeros(N, dtype=torch.uint8), torch.zeros(stored.n_blocks(N), dtype=torch.uint8))
        for _ in range(2)
    ]
    tensors = (torch.zeros(N), torch.zeros(N), *moments)
    update_8bit(*tensors, torch.ones(2), torch.ones(()), **RANDOM, **SETTINGS)


LAUNCHES = {
    "bf16": Launch(lambda: _update(torch.bfloat16), registers=80, shared_bytes=0),
    "fp32": Launch(lambda: _update(torch.float32), registers=80, shared_bytes=0),
    "bf16 states": Launch(_bf16, registers=64, shared_bytes=4096),
    "8-bit states": Launch(_8bit, registers=80, shared_bytes=8192),
}
