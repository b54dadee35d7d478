"""RoPE of the heads of a fused projection, by the name of its implementation."""

from collections.abc import Callable

import torch
from torch import Tensor

from peakward.kernels.ops.rope.api import rope, rope_

RotationFn = Callable[[Tensor, Tensor, Tensor, int, int], tuple[Tensor, Tensor, Tensor]]
"""rotation(packed, cos, sin, n_heads, n_kv_heads): the queries, keys and values of packed (batch,
n_heads + 2·n_kv_heads, seq_len, head_dim), with queries and keys turned. cos and sin are (seq_len,
head_dim / 2), or (batch, seq_len, head_dim / 2)."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (batch, heads, seq_len, head_dim), its element i turned with element i + head_dim/2."""
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    low, high = x.chunk(2, dim=-1)
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    return turned.to(x.dtype)


def of_torch(
    packed: Tensor, cos: Tensor, sin: Tensor, n_heads: int, n_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The rotation written out in torch: queries and keys become tensors of their own."""
    q, k, v = packed.split((n_heads, n_kv_heads, n_kv_heads), dim=1)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def fused(
    packed: Tensor, cos: Tensor, sin: Tensor, n_heads: int, n_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The rotation in one pass over all three, which stay side by side; in place where no gradient is
    needed.

    With a gradient, autograd would copy the projection's whole gradient for an operator that changed a
    view of it, two further passes. A new tensor costs none, and the old one is freed at once.
    """
    differentiated = torch.is_grad_enabled() and packed.requires_grad
    turn = rope if differentiated else rope_
    turned = turn(packed, cos, sin, n_turned=n_heads + n_kv_heads)
    q, k, v = turned.split((n_heads, n_kv_heads, n_kv_heads), dim=1)
    return q, k, v


IMPLEMENTATIONS: dict[str, RotationFn] = {"torch": of_torch, "fused": fused}
