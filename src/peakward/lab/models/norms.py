"""torch's norms with Peakward's own kernels, also with the residual's sum in the same pass.

Parameters, their names and the types of results are those of torch's modules: a module is turned into
one of these, and back, by changing its class alone.
"""

import torch
from torch import Tensor, nn

from peakward.kernels.ops.layer_norm.api import add_layer_norm, layer_norm
from peakward.kernels.ops.rms_norm.api import add_rms_norm, rms_norm


class FusedRMSNorm(nn.RMSNorm):
    """Over the last dimension."""

    def forward(  # type: ignore[override]  # A call of the module, so that what it runs is known as its own.
        self, x: Tensor, added: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The norm of x; with `added`, of x's type, the norm of the sum, and the sum."""
        if added is None:
            return rms_norm(as_autocast(x), self.normalized_shape, self.weight, self.eps)
        return add_rms_norm(added, x, self.weight, self.eps)


class FusedLayerNorm(nn.LayerNorm):
    """Over the last dimension."""

    def forward(  # type: ignore[override]  # A call of the module, so that what it runs is known as its own.
        self, x: Tensor, added: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """See `FusedRMSNorm`."""
        if added is None:
            x = as_autocast(x)
            return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return add_layer_norm(added, x, self.weight, self.bias, self.eps)


FusedNorm = FusedRMSNorm | FusedLayerNorm


def of_sum(norm: FusedNorm, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """x + added, and the norm of the sum. It is one pass where both have one type; under autocast the
    residual stream and the addend have different types."""
    if x.dtype == added.dtype:
        normed, x = norm(x, added)
        return x, normed
    x = x + added
    return x, norm(x)


def as_autocast(x: Tensor) -> Tensor:
    """x in fp32 under autocast, because CUDA computes norms so (ATen/autocast_mode.h, AT_FORALL_FP32)."""
    return x.float() if torch.is_autocast_enabled(x.device.type) else x
