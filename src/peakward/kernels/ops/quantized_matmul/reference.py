"""Weights of 8 and 4 bits, rounded to nearest, and the product with them, as their definitions have it."""

import torch
from torch import Tensor

INT4_GROUPS = (32, 64, 128)
INT4_TILE = 128
"""Columns that are packed together."""


def int8_weight(weight: Tensor, *, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Each group of a row by its largest element: weight ≈ stored · scale.

    Args:
        weight: (n, k).
        group: neighbouring columns that share a scale; None: whole rows, one scale a channel.

    Returns:
        (n, k) of int8, from -127 to 127, and the scales, (k / group, n) of fp32.

    Raises:
        ValueError: a group that does not divide k.
    """
    grouped = _grouped(weight, group or weight.shape[1])
    scale = grouped.abs().amax(-1) / 127
    stored = _rounded(grouped, scale).clamp(-127, 127)
    return stored.view(weight.shape).to(torch.int8), scale.t().contiguous()


def int4_weight(weight: Tensor, *, group: int) -> tuple[Tensor, Tensor]:
    """Symmetric groups: weight ≈ (stored - 8) · scale.

    Returns:
        The packed weight (see `packed`) of numbers from 1 to 15, and the scales, (k / group, n) of
        fp32.

    Raises:
        ValueError: a group that is none of `INT4_GROUPS` or does not divide k.
    """
    grouped = _grouped(weight, _int4(group))
    scale = grouped.abs().amax(-1) / 7
    stored = _rounded(grouped, scale).clamp(-7, 7) + 8
    return packed(stored.view(weight.shape)), scale.t().contiguous()


def int4_rounded(weight: Tensor, *, group: int, scale_dtype: torch.dtype = torch.float32) -> Tensor:
    """The numbers that `int4_weight` stands for, (n, k) of fp32, its scales kept in another type.

    Raises:
        ValueError: as `int4_weight`.
    """
    grouped = _grouped(weight, _int4(group))
    scale = grouped.abs().amax(-1) / 7
    stored = _rounded(grouped, scale).clamp(-7, 7)
    return (stored * scale.to(scale_dtype).float()[..., None]).view(weight.shape)


def int4_weight_with_zeros(weight: Tensor, *, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Groups from their least to their largest element, zero among them:
    weight ≈ (stored - zero) · scale.

    Returns:
        The packed weight, the scales, (k / group, n) of fp32, and the zeros, (k / group, n) of uint8
        from 0 to 15.

    Raises:
        ValueError: as `int4_weight`.
    """
    grouped = _grouped(weight, _int4(group))
    least, most = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scale = (most - least) / 15
    zero = _rounded(-least[..., None], scale)[..., 0].clamp(0, 15)
    stored = (_rounded(grouped, scale) + zero[..., None]).clamp(0, 15)
    whole = packed(stored.view(weight.shape))
    return whole, scale.t().contiguous(), zero.to(torch.uint8).t().contiguous()


def packed(stored: Tensor) -> Tensor:
    """Eight columns a word, by tiles of 128 columns whatever the group.

    Word 4 t + i of a channel's tile has columns 32 i + 8 t, … + 7 of it: of 16 bytes that a lane loads,
    each word is of another 32 columns, in which the lane's neighbours have the others. Even columns lie
    in the lower half of the word and odd ones in the upper, so that one shift and one mask leave two
    neighbours in the halves of a register, where a product on tensor cores wants them.

    Args:
        stored: (n, k) of whole numbers from 0 to 15.

    Returns:
        (⌈k / 128⌉, n, 16) of int32; what is beyond k is 0.
    """
    n, k = stored.shape
    padded = torch.nn.functional.pad(stored.long(), (0, -k % INT4_TILE))
    numbers = padded.view(n, -1, 4, 4, 4, 2).permute(1, 0, 3, 2, 5, 4)
    words = (numbers.flatten(-2) << _nibble_shifts(stored.device)).sum(-1)
    return words.flatten(2).to(torch.int32)


def unpacked(weight: Tensor) -> Tensor:
    """The numbers that `packed` was given, with its padding: (n, 128 · tiles) of uint8."""
    tiles, n, _ = weight.shape
    numbers = weight[..., None] >> _nibble_shifts(weight.device) & 15
    numbers = numbers.view(tiles, n, 4, 4, 2, 4).permute(1, 0, 3, 2, 5, 4)
    return numbers.reshape(n, tiles * INT4_TILE).to(torch.uint8)


def int8_dequantized(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that an int8 weight stands for, (n, k) in `dtype`."""
    wide = torch.promote_types(dtype, torch.float32)
    return (weight.to(wide) * by_column(scale, weight.shape[1], wide)).to(dtype)


def int4_dequantized(
    weight: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype, *, group: int
) -> Tensor:
    """The numbers that a packed weight stands for, (n, k) in `dtype`."""
    wide = torch.promote_types(dtype, torch.float32)
    k = group * len(scale)
    stored = unpacked(weight)[:, :k].to(wide)
    origin = 8 if zero is None else by_column(zero, k, wide)
    return ((stored - origin) * by_column(scale, k, wide)).to(dtype)


def int8_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """x (m, k) times the transposed weight: (m, n) in x's dtype."""
    return x @ int8_dequantized(weight, scale, x.dtype).mT


def int4_matmul(x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """x (m, k) times the transposed weight: (m, n) in x's dtype. Without zeros they are 8."""
    group = x.shape[-1] // len(scale)
    return x @ int4_dequantized(weight, scale, zero, x.dtype, group=group).mT


def _nibble_shifts(device: torch.device) -> Tensor:
    return torch.arange(0, 32, 4, dtype=torch.int32, device=device)


def _int4(group: int) -> int:
    if group not in INT4_GROUPS:
        raise ValueError(f"expected a group of {', '.join(map(str, INT4_GROUPS))}, got {group}")
    return group


def _grouped(weight: Tensor, group: int) -> Tensor:
    n, k = weight.shape
    if k % group:
        raise ValueError(f"expected a group that divides {k} columns, got {group}")
    return weight.float().view(n, k // group, group)


def _rounded(grouped: Tensor, scale: Tensor) -> Tensor:
    """In steps of the scale; nothing where a group has no size."""
    return (grouped / scale.masked_fill(scale == 0, 1)[..., None]).round()


def by_column(scale: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """(groups, n) as (n, k)."""
    return scale.to(dtype).t().repeat_interleave(k // len(scale), dim=1)
