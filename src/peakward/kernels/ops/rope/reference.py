"""Rotary position embedding (Su et al. 2021), in the half rotation of the reference decoder."""

import torch
from torch import Tensor


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, *, n_turned: int | None = None, inverse: bool = False
) -> Tensor:
    """Element i of a head turned with element i + head_dim/2: low·cos - high·sin and high·cos +
    low·sin, in at least fp32, rounded once to x's dtype.

    So do `rotation.api.rotate` and transformers' `apply_rotary_pos_emb`, whose cosines and sines
    are these twice side by side. The paper itself turns neighbours, 2i with 2i + 1.

    Args:
        x: (batch, heads, seq_len, head_dim).
        cos, sin: (seq_len, head_dim / 2), or (batch, seq_len, head_dim / 2).
        n_turned: how many heads, from the first; the others stay as they are. None for all.
        inverse: by the negative angle, which is also what a gradient is turned by.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (each.to(wide).unsqueeze(-3) for each in (cos, sin))
    sin = -sin if inverse else sin
    turned, kept = x[:, :n_turned], x[:, x.shape[1] if n_turned is None else n_turned :]
    low, high = turned.to(wide).chunk(2, dim=-1)
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    return torch.cat((turned.to(x.dtype), kept), dim=1)
