"""Levers `tf32`, `bf16-mixed`, `fp16-mixed`, `bf16`, `fp8`: the types that a step computes in.

`fp8` computes the blocks' matmuls in fp8 (`kernels/ops/fp8_linear`), the rest as `bf16-mixed`.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from peakward.kernels.ops.fp8_modules.api import in_fp8, keep_scales, scales_of
from peakward.kernels.ops.fp8_swiglu.api import fp8_swiglu_network
from peakward.lab.models.decoder import ACTIVATIONS, Decoder, FeedForward
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


class Fp8Linear(nn.Linear):
    """A linear layer whose three matmuls run in fp8, by delayed scales where it trains. Tokens and both
    widths divide by 16."""

    def forward(self, input: Tensor) -> Tensor:
        return in_fp8(self, input)


class Fp8FeedForward(FeedForward):
    """A SwiGLU network without biases whose SwiGLU, by Peakward's own kernel, writes fp8 where it trains."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(x)
        scales = scales_of(self.up), scales_of(self.down)
        return fp8_swiglu_network(x, self.up.weight, self.down.weight, *scales)


def apply_fp8(model: Decoder) -> None:
    """Turn every linear layer of the blocks into its fp8 form, keeping the parameters, and SwiGLU networks
    without biases, which would stand between the products and SwiGLU, into theirs: a step of `2.7B` at
    8 × 1024 takes 223 ms for 235 with SwiGLU apart from its casts (an H200)."""
    for module in model.blocks.modules():
        if type(module) is nn.Linear:
            turn_to_fp8(module)
        elif type(module) is FeedForward and _is_swiglu(module) and module.up.bias is None:
            module.__class__ = Fp8FeedForward


def _is_swiglu(network: FeedForward) -> bool:
    return network.gated and network.activation is ACTIVATIONS["silu"]


def turn_to_fp8(layer: nn.Linear) -> None:
    """Turn a layer into its fp8 form in place, keeping the parameters."""
    keep_scales(layer)
    layer.__class__ = Fp8Linear
