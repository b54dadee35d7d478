"""A tile of a quantised weight, widened in registers, times one of x.

A stored number becomes a float by its bits: set below those of a power of two it is that power plus
the number, less which, and less the zero, one subtraction leaves it exact. A scale multiplies its
group's product rather than its elements.
"""

import torch
import triton
import triton.language as tl

from peakward.kernels.ops.quantized_matmul.triton.words import by_quarter, quarters_of_words

POWERS = {torch.float32: 0x4B000000, torch.float16: 0x64006400, torch.bfloat16: 0x43004300}
"""2ᵖ in bits, p being those of a type's mantissa; in 16 bits twice."""


@triton.jit
def added(  # type: ignore[no-untyped-def]
    acc,
    xs,
    w,
    scale,
    zero,
    power,
    NIBBLES: tl.constexpr,
    LANE: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """acc and a tile of the weight of every warp times one of x, of which `xs` are the quarters.

    acc is (WARPS, CHANNELS, ROWS) and xs are (WARPS, 32, ROWS) where each warp has its own columns,
    (WARPS · CHANNELS, ROWS) and (32, ROWS) where all have the same.
    """
    type_: tl.constexpr = xs[0].dtype
    ws = quarters_of_words(w, NIBBLES, LANE, CHANNELS, WARPS)
    scales = by_quarter(scale, GROUPS, CHANNELS, WARPS)
    zeros = by_quarter(zero, GROUPS, CHANNELS, WARPS)
    product = tl.zeros_like(acc)
    for quarter in tl.static_range(4):
        if not NIBBLES:
            wide = _of_bytes(ws[quarter], power, type_)
        elif HAS_ZEROS:
            # 16 more than a nibble less its zero, of whole numbers, so that what is left to take from
            # the float is a constant: with a zero there, half of the subtractions were of one weight.
            more = 0x00100010 - zeros[quarter].permute(3, 0, 1, 2).to(tl.int32) * 0x00010001
            wide = _of_nibbles(ws[quarter], more, 16, power, type_)
        else:
            wide = _of_nibbles(ws[quarter], None, 8, power, type_)
        if len(acc.shape) == 2:
            # The operand of a product of four warps has pairs of columns 8 apart, not beside one another.
            wide = wide.permute(0, 1, 2, 3, 5, 4, 6).reshape(WARPS * CHANNELS, 32)
        else:
            wide = wide.reshape(WARPS, CHANNELS, 32)
        product = tl.dot(wide, xs[quarter], product, input_precision="ieee")
        # In fp32 by 32 columns: sums of 128 in a row erred 1.6 times as much as torch's.
        if type_ == tl.float32 or (quarter + 1) * GROUPS % 4 == 0:
            acc += product * _factors(scales[quarter], acc)
            product = tl.zeros_like(acc)
    return acc


@triton.jit
def _factors(scale, acc):  # type: ignore[no-untyped-def]
    """(WARPS, 8, 4, R) as acc: of rows 2 t and 2 t + 1 a lane of t has products."""
    WARPS: tl.constexpr = scale.shape[0]
    R: tl.constexpr = scale.shape[3]
    ROWS: tl.constexpr = acc.shape[len(acc.shape) - 1]
    scale = scale.to(tl.float32).permute(0, 3, 1, 2).reshape(WARPS, 8 * R, 1, 4, 1)
    scale = tl.broadcast_to(scale, (WARPS, 8 * R, ROWS // 8, 4, 2))
    if len(acc.shape) == 2:
        scale = scale.reshape(WARPS * 8 * R, ROWS)
    else:
        scale = scale.reshape(WARPS, 8 * R, ROWS)
    return scale


@triton.jit
def _of_nibbles(  # type: ignore[no-untyped-def]
    words,
    more,
    LESS: tl.constexpr,
    power,
    type_: tl.constexpr,
):
    """The 8 numbers of each word, and `more` in both halves if any, less LESS: of WARPS, R, 8, 4, 2³."""
    bits: tl.constexpr = 23 if type_ == tl.float32 else 10 if type_ == tl.float16 else 7
    less = tl.full((1,), 2**bits + LESS, type_)
    column0 = words & 0x000F000F
    column2 = words >> 4 & 0x000F000F
    column4 = words >> 8 & 0x000F000F
    column6 = words >> 12 & 0x000F000F
    if more is not None:
        if type_ != tl.float32:
            # Added with the rest: no instruction of its own.
            more += power
            power = 0
        column0 += more
        column2 += more
        column4 += more
        column6 += more
    wide = tl.join(
        tl.join(_floats(column0, power, type_) - less, _floats(column4, power, type_) - less),
        tl.join(_floats(column2, power, type_) - less, _floats(column6, power, type_) - less),
    )
    return wide.permute(1, 0, 2, 6, 3, 5, 4)


@triton.jit
def _of_bytes(words, power, type_: tl.constexpr):  # type: ignore[no-untyped-def]
    """The 4 numbers of each word, of WARPS, R, 8, 2, 4, 2²: their lower 7 bits, less the sign's 128."""
    even = _floats(words & 0x007F007F, power, type_)
    even -= _floats(words & 0x00800080, power, type_)
    odd = _floats(words >> 8 & 0x007F007F, power, type_)
    odd -= _floats(words >> 8 & 0x00800080, power, type_)
    return tl.join(even, odd).permute(1, 0, 2, 6, 3, 4, 5)


@triton.jit
def _floats(pairs, power, type_: tl.constexpr):  # type: ignore[no-untyped-def]
    """2ᵖ plus each of the two numbers of at most 8 bits in a pair's halves, in a last dimension of 2.

    Their bits are those of 2ᵖ, p being the bits of a mantissa, with the number's below. `power` is an
    argument because mask and power are one instruction so, and two of two constants.
    """
    if type_ == tl.float32:
        bits = tl.join(pairs & 0xFFFF, pairs >> 16) | power
    else:
        pairs |= power
        bits = tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16))
    return bits.to(type_, bitcast=True)
