"""Rotary position embedding (Su et al. 2021), in the half rotation of the reference decoder."""

import torch
from torch import Tensor


def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    n_turned: int | None = None,
    inverse: bool = False,
    neighbours: bool = False,
) -> Tensor:
    """Element i of a head turned with element i + head_dim/2: low·cos - high·sin and high·cos +
    low·sin, in at least fp32, rounded once to x's dtype.

    So do `rotation.api.rotate` and transformers' `apply_rotary_pos_emb`, whose cosines and sines
    are head_dim wide: low is turned by their first half, high by their second. The paper itself
    turns neighbours.

    Args:
        x: (batch, heads, seq_len, head_dim).
        cos, sin: (seq_len, head_dim / 2), or (batch, seq_len, head_dim / 2); or head_dim wide.
        n_turned: how many heads, from the first; the others stay as they are. None for all.
        inverse: what a gradient is turned by: the negative angle, where both halves are alike.
        neighbours: element 2i turned with 2i + 1 instead.
    """
    if neighbours:
        in_halves = [
            each if each.shape[-1] < x.shape[-1] else _in_halves(each) for each in (cos, sin)
        ]
        made = rope(_in_halves(x), *in_halves, n_turned=n_turned, inverse=inverse)
        return made.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
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


def _in_halves(x: Tensor) -> Tensor:
    """The even elements of the last dimension before the odd ones."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
