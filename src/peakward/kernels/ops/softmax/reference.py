"""Softmax over the last dimension."""

import torch
from torch import Tensor


def softmax(x: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(x - max x) / Σ exp(x - max x), taken in at least fp32 and rounded once to `dtype`.

    A row can be read in pieces: with the maximum m and the sum s of what came before, a piece with
    maximum m' makes them max(m, m') and s·exp(m - max(m, m')) + Σ exp(x - max(m, m')) (Milakov &
    Gimelshein 2018, algorithm 3).
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    e = (x - x.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)).to(dtype)


def softmax_backward(gradient: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """y·(gradient - Σ gradient·y) over the last dimension, y what `softmax` gave."""
    wide = torch.promote_types(y.dtype, torch.float32)
    gradient, y = gradient.to(wide), y.to(wide)
    return (y * (gradient - (gradient * y).sum(-1, keepdim=True))).to(dtype)
