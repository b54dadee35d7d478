"""Numbers of a byte or half a byte widened by their bits, two in a register at once.

A conversion takes several instructions an element, and a step of decode has millions of them to widen. Both
types have integers at hand by their bits: 0x4300 | n is 128 + n in bf16, of n below 128, and 0x6400 | n is
1024 + n in fp16, of n below 1024. Triton's interpreter knows no assembly; there, and in fp32, they are
converted.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.rows.vectors import COMPILED


@triton.jit
def widened_bytes(pairs, stored: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The lower and the upper byte of int16, which are numbers in `stored`, exactly in `dtype`."""
    if COMPILED and stored == tl.int8 and dtype == tl.bfloat16:
        # 128 + (its 7 lower bits) less 128 + 128 · (its sign).
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 odd, whole, sign, less;
            mov.b32 less, 0xbf80bf80;
            shr.u32 odd, $2, 8;
            lop3.b32 whole, $2, 0x007f007f, 0x43004300, 0xea;
            lop3.b32 sign, $2, 0x00800080, 0x43004300, 0xea;
            fma.rn.bf16x2 $0, sign, less, whole;
            lop3.b32 whole, odd, 0x007f007f, 0x43004300, 0xea;
            lop3.b32 sign, odd, 0x00800080, 0x43004300, 0xea;
            fma.rn.bf16x2 $1, sign, less, whole;
            }""",
            "=&r,=r,r",
            [pairs],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    elif COMPILED and stored == tl.int8 and dtype == tl.float16:
        # 1024 + (128 more than it is) less 1152.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 odd, whole, less;
            mov.b32 less, 0xe480e480;
            shr.u32 odd, $2, 8;
            lop3.b32 whole, $2, 0x00ff00ff, 0x64806480, 0x6a;
            add.rn.f16x2 $0, whole, less;
            lop3.b32 whole, odd, 0x00ff00ff, 0x64806480, 0x6a;
            add.rn.f16x2 $1, whole, less;
            }""",
            "=&r,=r,r",
            [pairs],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        even = pairs.to(tl.int8).to(stored, bitcast=True).to(dtype)
        odd = (pairs >> 8).to(tl.int8).to(stored, bitcast=True).to(dtype)
        return even, odd


@triton.jit
def widened_halves(stored, step, least, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The four half bytes of int16, from the lowest on, by `step` from `least` on: each rounded once to
    `dtype`, as `reference.unpacked` has them."""
    if COMPILED and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 at, whole, one, less;
            mov.b32 one, 0x3f803f80;
            mov.b32 less, 0xc300c300;
            lop3.b32 whole, $4, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 whole, whole, one, less;
            fma.rn.bf16x2 $0, whole, $5, $6;
            shr.u32 at, $4, 4;
            lop3.b32 whole, at, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 whole, whole, one, less;
            fma.rn.bf16x2 $1, whole, $5, $6;
            shr.u32 at, $4, 8;
            lop3.b32 whole, at, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 whole, whole, one, less;
            fma.rn.bf16x2 $2, whole, $5, $6;
            shr.u32 at, $4, 12;
            lop3.b32 whole, at, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 whole, whole, one, less;
            fma.rn.bf16x2 $3, whole, $5, $6;
            }""",
            "=&r,=&r,=&r,=r,r,r,r",
            [stored, step, least],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    elif COMPILED and dtype == tl.float16:
        # The upper half of a byte as 1024 + 16 · n.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 at, whole, one, less, part, less_part;
            mov.b32 one, 0x3c003c00;
            mov.b32 less, 0xe400e400;
            mov.b32 part, 0x2c002c00;
            mov.b32 less_part, 0xd400d400;
            lop3.b32 whole, $4, 0x000f000f, 0x64006400, 0xea;
            fma.rn.f16x2 whole, whole, one, less;
            fma.rn.f16x2 $0, whole, $5, $6;
            lop3.b32 whole, $4, 0x00f000f0, 0x64006400, 0xea;
            fma.rn.f16x2 whole, whole, part, less_part;
            fma.rn.f16x2 $1, whole, $5, $6;
            shr.u32 at, $4, 8;
            lop3.b32 whole, at, 0x000f000f, 0x64006400, 0xea;
            fma.rn.f16x2 whole, whole, one, less;
            fma.rn.f16x2 $2, whole, $5, $6;
            lop3.b32 whole, at, 0x00f000f0, 0x64006400, 0xea;
            fma.rn.f16x2 whole, whole, part, less_part;
            fma.rn.f16x2 $3, whole, $5, $6;
            }""",
            "=&r,=&r,=&r,=r,r,r,r",
            [stored, step, least],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        return (
            tl.fma((stored & 15).to(dtype), step, least),
            tl.fma(((stored >> 4) & 15).to(dtype), step, least),
            tl.fma(((stored >> 8) & 15).to(dtype), step, least),
            tl.fma(((stored >> 12) & 15).to(dtype), step, least),
        )


LARGEST_OF_TWO: tl.constexpr = tl.constexpr(127 * 256 + 127)
"""The largest number that two digits of base 256 hold, from -128 to 127 each."""
LEAST_PEAK: tl.constexpr = tl.constexpr(1e-30)
"""Rows with smaller elements alone count as zeros: their unit would leave fp32's range."""


@triton.jit
def twice(x):  # type: ignore[no-untyped-def]
    """x (rows, columns) as (2 · rows, columns), each row twice."""
    # Joined with itself it is laid out for elements of half as many bits, four moves a product.
    both = tl.broadcast_to(x[:, None, :], (x.shape[0], 2, x.shape[1]))
    return tl.reshape(both, (2 * x.shape[0], x.shape[1]))


@triton.jit
def first_of_two(x):  # type: ignore[no-untyped-def]
    """The rows that `twice` doubled."""
    both = tl.reshape(x, (x.shape[0] // 2, 2, x.shape[1]))
    return tl.split(tl.permute(both, (0, 2, 1)))[0]


@triton.jit
def digits(q):  # type: ignore[no-untyped-def]
    """Rows (rows, dims) as (2 · rows, dims) of int8, each row's higher and lower digits of base 256, and the
    unit of each row, NaN where an element is not finite.

    A row's largest element is `LARGEST_OF_TWO` units, and rounding errs by half of one at most: 2⁻¹⁶ of the
    largest, where an element in fp16 is rounded to 2⁻¹¹ of itself.
    """
    wide = q.to(tl.float32)
    unit = tl.maximum(tl.max(tl.abs(wide), 1), LEAST_PEAK) / LARGEST_OF_TWO + tl.sum(wide * 0.0, 1)
    whole = twice(tl.floor(wide / unit[:, None] + 0.5).to(tl.int32))
    high = (whole + 128) >> 8
    is_high = tl.arange(0, whole.shape[0]) % 2 == 0
    return tl.where(is_high[:, None], high, whole - (high << 8)).to(tl.int8), unit


@triton.jit
def product_of_digits(k, q):  # type: ignore[no-untyped-def]
    """k (positions, dims) of int8 times the rows that `digits` split, in fp32 and in units: (positions,
    rows). Exact but for the last rounding: of 256 dimensions no sum leaves int32."""
    both = tl.dot(k, tl.trans(q), out_dtype=tl.int32)
    high, low = tl.split(tl.reshape(both, (both.shape[0], both.shape[1] // 2, 2)))
    return ((high << 8) + low).to(tl.float32)
