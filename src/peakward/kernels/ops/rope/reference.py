"""Rotary position embedding (Su et al. 2021), in the half rotation of the reference decoder."""

import torch
from torch import Tensor


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, *, n_turned: int | None = None, inverse: bool = False
) -> Tensor:
    """Element i of a head turned with element i + head_dim/2: low·cos - high·sin and high·cos +
    low·sin, in at least fp32, rounded once to x's dtype.

    So do `rotation.api.rotate` and transformers' `apply_rotary_pos_emb`, whose cosines and sines
    are head_dim wide: low is turned by their first half, high by their second. The paper itself
    turns neighbours, 2i with 2i + 1.

    Args:
        x: (batch, heads, seq_len, head_dim).
        cos, sin: (seq_len, head_dim / 2), or (batch, seq_len, head_dim / 2); or head_dim wide.
        n_turned: how many heads, from the first; the others stay as they are. None for all.
        inverse: what a gradient is turned by: the negative angle, where both halves are alike.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (each.to(wide).unsqueeze(-3) for each in (cos, sin))
    if cos.shape[-1] < x.shape[-1]:
        cos, sin = (torch.cat((each, each), dim=-1) for each in (cos, sin))
    (cos, cos_high), (sin, sin_high) = cos.chunk(2, dim=-1), sin.chunk(2, dim=-1)
    if inverse:
        sin, sin_high = -sin_high, -sin
    turned, kept = x[:, :n_turned], x[:, x.shape[1] if n_turned is None else n_turned :]
    low, high = turned.to(wide).chunk(2, dim=-1)
    turned = torch.cat((low * cos - high * sin, high * cos_high + low * sin_high), dim=-1)
    return torch.cat((turned.to(x.dtype), kept), dim=1)
