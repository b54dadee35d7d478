"""How AdamW's moments are kept in fewer bits than fp32, and the random bits that round them without bias.

bf16: the upper half of fp32, rounded up with the probability of what is cut off.

8 bits: blocks of `BLOCK` elements share an exponent, as in the OCP microscaling formats (2023), and an
element is a float below it: the first moment a sign, 4 bits of exponent and 3 of mantissa, the second moment,
which has no sign, 5 and 3. Blocks are those of Dettmers et al. 2022, "8-bit Optimizers via Block-wise
Quantization"; its codes are a table of 256 values times the largest of a block, and the nearest is taken.
These differ in two ways. A power of two as scale leaves the grid where it is when a block's largest element
changes, so that a moment that lies on it is not rounded again. And a second moment changes by a thousandth of
its distance to the squared gradient in a step (1 - β₂), below half the distance of any 8-bit grid: rounded to
nearest it would stand still, rounded at random it follows in the mean. A second moment above 0 never becomes
0, where the first moment over ε would be the step: below the smallest value of its block it is that value.
"""

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 256
"""Elements that share an exponent."""
TILE = 1024
"""The elements that one word of Philox's four serves: word k of counter c rounds element 4·TILE·(c // TILE) +
k·TILE + c % TILE."""
LEAST_EXPONENT = 40
"""The smallest exponent of a block, biased as fp32's: 2⁻⁸⁷. No value of a block is subnormal in fp32.
A block of zeros may have any."""
NOT_FINITE = 255
"""The exponent of a block with an infinity or a NaN, of which every element is read as NaN."""
MANTISSA = 3


class Code(NamedTuple):
    """A float of 8 bits below its block's exponent."""

    exponents: int
    """The largest value of the exponent's field, which stands for the block's own exponent."""
    signed: bool


FIRST = Code(15, signed=True)
SECOND = Code(31, signed=False)


def n_blocks(n: int) -> int:
    """The exponents that `n` elements have."""
    return -(-n // BLOCK)


def random_words(n: int, *, seed: int, number: int, step: int) -> Tensor:
    """Philox-4x32-10 (Salmon et al. 2011): (n,) of int64 below 2³², a word for each element of the update
    `step` of the optimiser's parameter `number`."""
    tiles = -(-n // (4 * TILE))
    low = torch.full((tiles * TILE,), 0xFFFFFFFF)
    first = torch.arange(tiles * TILE)
    words = [first, first * 0 + number, first * 0 + step, first * 0]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        even, odd = _product(0xD2511F53, words[0]), _product(0xCD9E8D57, words[2])
        words = [
            odd[0] ^ words[1] ^ key[0],
            odd[1],
            even[0] ^ words[3] ^ key[1],
            even[1],
        ]
        words = [each & low for each in words]
        key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return torch.stack([each.view(tiles, TILE) for each in words], dim=1).flatten()[:n]


def _product(factor: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The upper and the lower 32 bits of a product of two unsigned numbers of 32."""
    low, high = factor * (x & 0xFFFF), factor * (x >> 16)
    middle = (low >> 16) + high
    return middle >> 16, (middle & 0xFFFF) << 16 | low & 0xFFFF


def halves(words: Tensor) -> tuple[Tensor, Tensor]:
    """The 16 bits that round the first moment, and those of the second."""
    return words & 0xFFFF, words >> 16


def to_bf16(x: Tensor, bits: Tensor) -> Tensor:
    """Rounds fp32 to bf16 by 16 random bits each; what is not finite keeps its kind."""
    as_bits = x.contiguous().view(torch.int32).long() & 0xFFFFFFFF
    up = as_bits + bits >> 16
    kept = torch.where(x.isfinite(), up, as_bits >> 16 | x.isnan() * 0x40)
    return (kept << 16).to(torch.int32).view(torch.float32).to(torch.bfloat16)


def encode(x: Tensor, bits: Tensor, code: Code) -> tuple[Tensor, Tensor]:
    """Rounds fp32 (n,) by 16 random bits each.

    Returns:
        The codes (n,) and the blocks' exponents (n_blocks,), both uint8.
    """
    n = x.numel()
    padded = torch.nn.functional.pad(x, (0, -n % BLOCK)).view(-1, BLOCK)
    size = padded.view(torch.int32).long() & 0x7FFFFFFF
    # Beyond the largest value of its exponent an element takes the next one.
    top = size.amax(1, keepdim=True) + (1 << 23 - MANTISSA) - 1 >> 23
    top = top.clamp(LEAST_EXPONENT, NOT_FINITE)
    least = top - code.exponents + 1
    exponent = torch.maximum(size >> 23, least).clamp(max=NOT_FINITE - 1)
    fractions = padded.abs() * _power_of_two(254 + MANTISSA - exponent)
    noise = torch.nn.functional.pad(bits, (0, -n % BLOCK)).view(-1, BLOCK)
    whole = (fractions + (noise.float() + 0.5) * 2.0**-16).floor().nan_to_num(0.0, 0.0).long()
    found = (exponent - least << MANTISSA) + whole
    if code.signed:
        found = found.clamp(max=127) | padded.signbit() << 7
    else:
        found = torch.where(size > 0, found.clamp(1, 255), 0)
    return found.flatten()[:n].to(torch.uint8), top.flatten().to(torch.uint8)


def decode(codes: Tensor, exponents: Tensor, code: Code) -> Tensor:
    """The fp32 values (n,) of what `encode` made."""
    n = codes.numel()
    padded = torch.nn.functional.pad(codes, (0, -n % BLOCK)).view(-1, BLOCK).long()
    top = exponents.long()[:, None]
    size = padded & 127 if code.signed else padded
    field, mantissa = size >> MANTISSA, size & (1 << MANTISSA) - 1
    mantissa = torch.where(field > 0, mantissa + (1 << MANTISSA), mantissa)
    least = top - code.exponents + 1
    x = mantissa.float() * _power_of_two(least + (field - 1).clamp(min=0) - MANTISSA)
    if code.signed:
        x = torch.where(padded > 127, -x, x)
    return torch.where(top == NOT_FINITE, torch.nan, x).flatten()[:n]


def _power_of_two(biased: Tensor) -> Tensor:
    return (biased << 23).to(torch.int32).view(torch.float32)
