"""The product of a gated feed-forward network's two halves, by the name of its implementation."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from peakward.kernels.ops.swiglu.api import swiglu

Activation = Callable[[Tensor], Tensor]
GatingFn = Callable[[Activation, Tensor], Tensor]
"""gating(activation, x): activation(gate) * up of gate and up side by side, (…, 2·d_ff) → (…, d_ff)."""


def of_torch(activation: Activation, x: Tensor) -> Tensor:
    """The product written out in torch."""
    gate, up = x.chunk(2, dim=-1)
    return activation(gate) * up


def fused(activation: Activation, x: Tensor) -> Tensor:
    """The product in one pass, which keeps only x.

    Raises:
        ValueError: another activation than silu.
    """
    if activation is not F.silu:
        raise ValueError(f"gating: expected silu for the fused SwiGLU, got {activation}")
    return swiglu(x)


IMPLEMENTATIONS: dict[str, GatingFn] = {"torch": of_torch, "fused": fused}
