"""Products of up to 64 rows of x, in 16 bits, with a weight of 8 bits, byte by byte on tensor cores.

No byte of the weight is widened, or passes through registers where tensor cores read shared memory: x is
split into digits of a byte instead, two an element, of its group's own unit. Widened, bytes of 28,672 × 8,192
took 100 µs beside 4 and 16 rows and 164 beside 64 on an H200, which reads them in 56.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.dependent import launch_the_next, wait_for_the_one_before

LARGEST: tl.constexpr = tl.constexpr(127.0 * 256 + 127)
"""The largest number that two digits of base 256 hold, from -128 to 127 each."""
INFINITY: tl.constexpr = tl.constexpr(255 << 23)
"""Its bits, and the mask of an exponent."""
LEAST: tl.constexpr = tl.constexpr(30 << 23)
"""The bits of 2⁻⁹⁷. Groups with smaller elements alone have its unit: their own would leave fp32's range."""
WHOLE: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
"""Added to a number below 2²² it leaves the nearest integer in the sum's lower bits, in two's complement."""


@triton.jit
def _digits(x):  # type: ignore[no-untyped-def]
    """x (rows, columns), one group of each row, as its higher and its lower digits of base 256, in int8, and
    the unit of each row in fp32.

    The unit is the least power of two of which 32,512 are more than the largest element: rounding errs by a
    32,512th of that at most, and not at all in elements of at least a 64th of it in bf16, an 8th in fp16.
    Infinite elements have the largest digits and an infinite unit, with NaN the unit is NaN.
    """
    wide = x.to(tl.float32)
    # By their bits infinity is larger than any number, and NaN than infinity.
    peak = tl.max(tl.abs(wide).to(tl.int32, bitcast=True), 1)
    exponent = tl.maximum(peak + (1 << 17), LEAST) & INFINITY
    finite = exponent - (14 << 23)
    per_unit = ((254 << 23) - finite).to(tl.float32, bitcast=True)
    unit = tl.where(peak < INFINITY, finite, peak).to(tl.float32, bitcast=True)
    units = tl.minimum(tl.maximum(wide * per_unit[:, None], -LARGEST), LARGEST)
    bits = (units + WHOLE).to(tl.int32, bitcast=True)
    return ((bits + 128) >> 8).to(tl.int8), bits.to(tl.int8), unit


@triton.jit
def quantized_matmul_split(  # type: ignore[no-untyped-def]
    x_ptr,
    digits_ptr,
    unit_ptr,
    m,
    k,
    x_row,
    digits_row,
    TILE: tl.constexpr,
    GROUPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """GROUPS groups of TILE columns of one row of x: digits (2 · m, k) of int8, each row's higher before its
    lower, and units (k / TILE, m)."""
    launch_the_next(DEPENDENT)
    wait_for_the_one_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * TILE + tl.arange(0, TILE)[None, :]
    inside = column < k
    high, low, unit = _digits(tl.load(x_ptr + row * x_row + column, mask=inside, other=0.0))
    digits = digits_ptr + 2 * row * digits_row + column
    tl.store(digits, high, mask=inside)
    tl.store(digits + digits_row, low, mask=inside)
    tl.store(unit_ptr + group * m + row, unit, mask=group * TILE < k)


@triton.jit
def quantized_matmul_digits(  # type: ignore[no-untyped-def]
    x_ptr,
    unit_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    m,
    n,
    k,
    n_tiles,
    tiles_per_scale,
    x_row,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    APART: tl.constexpr,
    GROUPED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """CHANNELS channels of ROWS rows of x, over this split's tiles of columns.

    x is what `quantized_matmul_split` left, with units, where APART; else x itself. Nothing of the weight is
    brought into the L2 ahead: with that, launches of 12 to 103 µs took 1.8 to 4.9 more on an H200.
    """
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < n
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    is_row = row < m
    within = tl.arange(0, TILE)
    per_split = tl.cdiv(n_tiles, tl.num_programs(1))
    low_tile = tl.program_id(1) * per_split
    high_tile = tl.minimum(low_tile + per_split, n_tiles)
    w_at = w_ptr + tl.minimum(channel, n - 1).to(tl.int64)[:, None] * k + within[None, :]
    if APART:
        x_rows = tl.program_id(2) * (2 * ROWS) + tl.arange(0, 2 * ROWS)
        is_x = (x_rows < 2 * m)[:, None]
    else:
        x_rows = row
        is_x = is_row[:, None]
    x_at = x_ptr + x_rows.to(tl.int64)[:, None] * x_row + within[None, :]
    wait_for_the_one_before(DEPENDENT)
    acc = tl.zeros((CHANNELS, ROWS), tl.float32)
    for tile in tl.range(low_tile, high_tile, num_stages=STAGES):
        first = tile * TILE
        is_column = (first + within < k)[None, :]
        w = tl.load(w_at + first, mask=is_column, other=0)
        x = tl.load(x_at + first, mask=is_x & is_column, other=0)
        if APART:
            unit = tl.load(unit_ptr + tile * m + row, mask=is_row, other=0.0)
        else:
            high, low, unit = _digits(x)
            x = tl.join(high, low).permute(0, 2, 1).reshape(2 * ROWS, TILE)
        product = tl.dot(w, tl.trans(x), out_dtype=tl.int32)
        high_sum, low_sum = tl.split(product.reshape(CHANNELS, ROWS, 2))
        part = ((high_sum << 8) + low_sum).to(tl.float32) * unit[None, :]
        if GROUPED:
            at = (tile // tiles_per_scale) * n + channel
            part *= tl.load(scale_ptr + at, mask=is_channel, other=0.0).to(tl.float32)[:, None]
        acc += part
    if not GROUPED:
        scale = tl.load(scale_ptr + channel, mask=is_channel, other=0.0).to(tl.float32)
        acc *= scale[:, None]
    out_row = tl.program_id(1).to(tl.int64) * m + row
    outs = out_ptr + out_row[None, :] * n + channel[:, None]
    inside = is_channel[:, None] & is_row[None, :]
    tl.store(outs, acc.to(out_ptr.dtype.element_ty), mask=inside)
