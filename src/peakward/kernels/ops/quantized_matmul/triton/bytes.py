"""Products of up to 16 rows of x, in 16 bits, with a weight of 8 bits, read along its rows.

What lanes multiply comes through shared memory, a row's bytes by the 128: a lane that loads what it
multiplies (`direct`) has 64 of a row beside one another, and of 8,192² one row took 53.9 µs for 35.6 so,
of 4,096 × 128,256 16 rows 261 for 207 (H100).
"""

import triton
import triton.language as tl


@triton.jit
def _floats(w):  # type: ignore[no-untyped-def]
    """Bytes in fp32: set below the bits of 2²³, a byte plus 128 is 2²³ plus that; conversions themselves are
    an instruction of a quarter of the rate."""
    bits = w.to(tl.int32) & 0xFF ^ 0x4B000080
    return bits.to(tl.float32, bitcast=True) - (2.0**23 + 128)


@triton.jit
def quantized_matmul_row(  # type: ignore[no-untyped-def]
    x_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    n,
    k,
    n_steps,
    steps_per_scale,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUPED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """CHANNELS channels of the only row of x, over this split's steps of COLUMNS."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < n
    within = tl.arange(0, COLUMNS)
    rows = w_ptr + channel.to(tl.int64)[:, None] * k
    acc = tl.zeros((CHANNELS, COLUMNS), tl.float32)
    per_split = tl.cdiv(n_steps, tl.num_programs(1))
    low = tl.program_id(1) * per_split
    high = tl.minimum(low + per_split, n_steps)
    for step in tl.range(low, high, num_stages=STAGES):
        column = step * COLUMNS + within
        inside = is_channel[:, None] & (column < k)[None, :]
        w = tl.load(rows + column[None, :], mask=inside, other=0)
        x = tl.load(x_ptr + column, mask=column < k, other=0.0).to(tl.float32)
        product = _floats(w) * x[None, :]
        if GROUPED:
            at = (step // steps_per_scale) * n + channel
            scale = tl.load(scale_ptr + at, mask=is_channel, other=0.0).to(tl.float32)
            product *= scale[:, None]
        acc += product
    out = tl.sum(acc, 1)
    if not GROUPED:
        out *= tl.load(scale_ptr + channel, mask=is_channel, other=0.0).to(tl.float32)
    outs = out_ptr + tl.program_id(1).to(tl.int64) * n + channel
    tl.store(outs, out.to(out_ptr.dtype.element_ty), mask=is_channel)


@triton.jit
def quantized_matmul_rows(  # type: ignore[no-untyped-def]
    x_ptr,
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
):
    """CHANNELS channels of ROWS rows of x, over this split's tiles of columns, on tensor cores."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < n
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    is_row = row < m
    within = tl.arange(0, TILE)
    acc = tl.zeros((CHANNELS, ROWS), tl.float32)
    w_at = w_ptr + channel.to(tl.int64)[:, None] * k + within[None, :]
    x_at = x_ptr + row.to(tl.int64)[None, :] * x_row + within[:, None]
    per_split = tl.cdiv(n_tiles, tl.num_programs(1))
    low = tl.program_id(1) * per_split
    for tile in range(low, tl.minimum(low + per_split, n_tiles)):
        first = tile * TILE
        is_column = first + within < k
        w = tl.load(w_at + first, mask=is_channel[:, None] & is_column[None, :], other=0)
        x = tl.load(x_at + first, mask=is_row[None, :] & is_column[:, None], other=0.0)
        product = tl.dot(w.to(x_ptr.dtype.element_ty), x)
        at = (tile // tiles_per_scale) * n + channel
        scale = tl.load(scale_ptr + at, mask=is_channel, other=0.0).to(tl.float32)
        acc += product * scale[:, None]
    out_row = tl.program_id(1).to(tl.int64) * m + row
    outs = out_ptr + out_row[None, :] * n + channel[:, None]
    inside = is_channel[:, None] & is_row[None, :]
    tl.store(outs, acc.to(out_ptr.dtype.element_ty), mask=inside)
