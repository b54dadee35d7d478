"""The types of tensors in a .gguf file: blocks of bytes to numbers in fp32.

The layouts are those of ggml (ggml-common.h, `dequantize_row_…` of ggml-quants.c). The types whose names end
in K hold 256 numbers a block, in groups with a step of their own in 6 or 8 bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Kind(NamedTuple):
    """How numbers are stored, in blocks of equal size."""

    name: str
    n_numbers: int
    n_bytes: int
    numbers: Callable[[Tensor], Tensor]
    """Blocks (n, n_bytes) of uint8 to (n, n_numbers) of fp32."""


def _plain(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda blocks: blocks.view(dtype).float()


def _half(blocks: Tensor, at: int) -> Tensor:
    """The fp16 number at byte `at` of each block, (blocks, 1) in fp32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _signed(part: Tensor) -> Tensor:
    return part.contiguous().view(torch.int8).float()


def _bits(part: Tensor, n_neighbours: int, width: int) -> Tensor:
    """The numbers of `width` bits in bytes (blocks, n): of each run of so many bytes first all lowest bits,
    then all next ones. (blocks, n · 8 / width) of uint8."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
    runs = part.unflatten(1, (-1, 1, n_neighbours))
    return ((runs >> shifts) & (2**width - 1)).flatten(1)


def _fifth(part: Tensor) -> Tensor:
    """The bits of 4 bytes, the lowest first, as 16 of a number: (blocks, 32)."""
    return ((part[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1) << 4


def _q5(b: Tensor, at: int) -> Tensor:
    return (_bits(b[:, at + 4 :], 16, 4) | _fifth(b[:, at : at + 4])).float()


def _steps(b: Tensor) -> tuple[Tensor, Tensor]:
    """The step and the least number of each group of 32 in a block of Q4_K or Q5_K, (blocks, 8, 1): 6 bits
    each, in bytes 4 to 15, times a number of the block's."""
    low, high, rest = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    step = torch.cat((low & 63, (rest & 15) | ((low >> 2) & 48)), dim=1)
    least = torch.cat((high & 63, (rest >> 4) | ((high >> 2) & 48)), dim=1)
    return (_half(b, 0) * step)[..., None], (_half(b, 2) * least)[..., None]


def _by_group(b: Tensor, quants: Tensor) -> Tensor:
    step, least = _steps(b)
    return (step * quants.unflatten(1, (8, 32)) - least).flatten(1)


def _q4_k(b: Tensor) -> Tensor:
    return _by_group(b, _bits(b[:, 16:], 32, 4))


def _q5_k(b: Tensor) -> Tensor:
    return _by_group(b, _bits(b[:, 48:], 32, 4) | _bits(b[:, 16:48], 32, 1) << 4)


def _q6_k(b: Tensor) -> Tensor:
    quants = (_bits(b[:, :128], 64, 4) | _bits(b[:, 128:192], 32, 2) << 4).float() - 32
    step = _half(b, 208) * _signed(b[:, 192:208])
    return (step[..., None] * quants.unflatten(1, (16, 16))).flatten(1)


KINDS = {
    0: Kind("F32", 1, 4, _plain(torch.float32)),
    1: Kind("F16", 1, 2, _plain(torch.float16)),
    2: Kind("Q4_0", 32, 18, lambda b: _half(b, 0) * (_bits(b[:, 2:], 16, 4).float() - 8)),
    3: Kind("Q4_1", 32, 20, lambda b: _half(b, 0) * _bits(b[:, 4:], 16, 4) + _half(b, 2)),
    6: Kind("Q5_0", 32, 22, lambda b: _half(b, 0) * (_q5(b, 2) - 16)),
    7: Kind("Q5_1", 32, 24, lambda b: _half(b, 0) * _q5(b, 4) + _half(b, 2)),
    8: Kind("Q8_0", 32, 34, lambda b: _half(b, 0) * _signed(b[:, 2:])),
    12: Kind("Q4_K", 256, 144, _q4_k),
    13: Kind("Q5_K", 256, 176, _q5_k),
    14: Kind("Q6_K", 256, 210, _q6_k),
    30: Kind("BF16", 1, 2, _plain(torch.bfloat16)),
}
"""The types of tensors that can be read, by their numbers in the format."""
