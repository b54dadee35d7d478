"""Levers `tf32`, `bf16-mixed`, `fp16-mixed`, `bf16`, `fp8`: the types that a step computes in.

`fp8` computes the blocks' matmuls with one scale per tensor, found anew at each use. Micikevicius et al.
2022, "FP8 formats for deep learning": e4m3 for activations and weights, e5m2 for gradients, accumulated in
fp32.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from peakward.lab.models.decoder import Decoder
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


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def _quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x in fp8 and the fp32 scalar that turns it back."""
    largest = torch.finfo(dtype).max
    scale = x.detach().abs().amax().float().clamp(min=1e-12) / largest
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


def _matmul(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """a (m, k) row-major times b (k, n) column-major: the layout that cuBLAS has fp8 kernels for."""
    return torch._scaled_mm(a, b, a_scale, b_scale, out_dtype=dtype, use_fast_accum=True)


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        ctx.save_for_backward(flat, weight)
        ctx.shape = x.shape
        a, a_scale = _quantise(flat, E4M3)
        b, b_scale = _quantise(weight, E4M3)
        return _matmul(a, a_scale, b.t(), b_scale, x.dtype).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        flat = gradients[0].flatten(0, -2)
        g, g_scale = _quantise(flat, E5M2)
        w, w_scale = _quantise(weight, E4M3)
        a, a_scale = _quantise(x, E4M3)
        w_columns, g_rows, a_columns = (each.t().contiguous() for each in (w, g, a))
        into_x = _matmul(g, g_scale, w_columns.t(), w_scale, flat.dtype)
        into_weight = _matmul(g_rows, g_scale, a_columns.t(), a_scale, flat.dtype)
        return into_x.view(ctx.shape), into_weight.to(weight.dtype)


class Fp8Linear(nn.Linear):
    """A linear layer whose three matmuls run in fp8. Tokens and both widths divide by 16."""

    def forward(self, input: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype(input.device.type)
        y: Tensor = _Fp8Linear.apply(input.to(dtype), self.weight)
        return y if self.bias is None else y + self.bias.to(dtype)


def apply_fp8(model: Decoder) -> None:
    """Turn every linear layer of the blocks into its fp8 form, keeping the parameters."""
    for module in model.blocks.modules():
        if type(module) is nn.Linear:
            module.__class__ = Fp8Linear
