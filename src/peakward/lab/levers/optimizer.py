"""Levers `fused-optimizer`, `triton-optimizer`: AdamW tensor by tensor, over lists, or fused."""

import torch
from torch import nn

from peakward.kernels.ops.adamw.api import TritonAdamW
from peakward.records.case import Optimizer

LEARNING_RATE = 1e-4
"""Small enough for the 48-layer size to stay finite over hundreds of steps on random tokens."""


def adamw(
    model: nn.Module, implementation: Optimizer, *, capturable: bool
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019) over all parameters.

    `capturable` keeps the step count on the device, as a CUDA graph needs (our own always does).
    """
    if implementation == "adamw-triton":
        return TritonAdamW(model.parameters(), lr=LEARNING_RATE)
    return torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        foreach=implementation == "adamw-foreach",
        fused=implementation == "adamw-fused",
        capturable=capturable,
    )
