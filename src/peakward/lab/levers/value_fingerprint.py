"""A large tensor's values in a few numbers, to compare it with another that is never there beside it."""

from typing import NamedTuple

import torch
from torch import Tensor

_AT_ONCE = 1 << 20
"""Values: 8 MiB as 64-bit integers, where logits of 4 × 2048 × 128,256 would be 8 GiB."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fingerprint(NamedTuple):
    """Equal for equal bits; of tensors that differ, equal by chance alone."""

    n_values: int
    n_nonfinite: int
    sums: tuple[int, ...]
    """A sum for each stretch of values: their bits times odd numbers, modulo 2^64. A change of one value
    always shows, and so does an exchange of two that differ by less than the whole type."""


def fingerprint(values: Tensor) -> Fingerprint:
    """Returns the fingerprint of values of any shape and type; waits for the device."""
    stretches = values.detach().reshape(-1).split(_AT_ONCE)
    sums, n_nonfinite = [], 0
    for each in stretches:
        n_nonfinite += int(each.isfinite().logical_not().sum())
        real = torch.view_as_real(each).reshape(-1) if each.is_complex() else each.contiguous()
        bits = real.view(_BITS[real.element_size()]).to(torch.int64)
        odd = 2 * torch.arange(len(bits), device=bits.device) + 1
        sums.append(int((bits * odd).sum()))
    return Fingerprint(values.numel(), n_nonfinite, tuple(sums))
