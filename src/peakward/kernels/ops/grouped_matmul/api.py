"""One matmul for each group of rows: in one kernel where torch has one, else in a loop."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peakward.kernels.ops.grouped_matmul import reference
from peakward.kernels.ops.launchable import autocast_dtype

ROW_BYTES = 16
"""The bytes of the pieces in which torch's kernel loads rows: widths must be whole pieces."""


def grouped_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """`reference.grouped_matmul` of contiguous tensors, on any device; under autocast in its type.

    Where `in_one_kernel` is true the host never waits, forward and backward, and a CUDA graph can
    capture it. Elsewhere the reference runs.
    """
    dtype = autocast_dtype(x.device)
    if dtype is not None:  # Autocast does not know grouped_mm.
        x, weight = x.to(dtype), weight.to(dtype)
    if not in_one_kernel(x.dtype, weight.shape[1:], x.device):
        return reference.grouped_matmul(x, weight, ends)
    return _ContiguousGradient.apply(F.grouped_mm(x, weight.mT, offs=ends))


def in_one_kernel(dtype: torch.dtype, widths: tuple[int, ...], device: torch.device) -> bool:
    """Whether torch has one kernel for this: bf16, both widths whole multiples of 16 bytes and, on
    CUDA, compute capability 9 or 10.

    For other types and capabilities torch's `grouped_mm` is itself a loop that waits for `ends`
    (`_grouped_mm_cuda` in ATen/native/cuda/GroupedBlas.cpp), as it is on a CPU for all.
    """
    if dtype != torch.bfloat16 or any(width * dtype.itemsize % ROW_BYTES for width in widths):
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in (9, 10)


class _ContiguousGradient(torch.autograd.Function):
    """The identity. `grouped_mm`'s backward pass takes no expanded gradient, such as that of a sum."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()
