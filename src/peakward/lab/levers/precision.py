"""Levers `tf32`, `bf16-mixed`, `fp16-mixed`, `bf16`, `fp8`: the types that a step computes in."""

from contextlib import AbstractContextManager, nullcontext

import torch

from peakward.records.case import DeviceType, Precision

AUTOCAST = {"bf16-mixed": torch.bfloat16, "fp8": torch.bfloat16, "fp16-mixed": torch.float16}


def parameter_dtype(precision: Precision) -> torch.dtype:
    """The type that parameters, gradients and moments are held in."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def autocast(precision: Precision, device: DeviceType) -> AbstractContextManager[None]:
    """A fresh autocast context for one forward pass.

    Without autocast's cache of cast weights: a CUDA graph may not keep it, and one forward pass
    casts each weight once anyway.
    """
    if precision not in AUTOCAST:
        return nullcontext()
    return torch.autocast(device, dtype=AUTOCAST[precision], cache_enabled=False)
