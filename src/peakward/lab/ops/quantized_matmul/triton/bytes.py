"""Products of up to 16 rows of x, in 16 bits, with a weight of 8 bits, read along its rows.

What lanes multiply comes through shared memory, a row's bytes by the 128: a lane that loads what it
multiplies (`direct`) has 64 of a row beside one another, and of 8,192² one row took 53.9 µs for 36.6 so,
of 4,096 × 128,256 16 rows 261 for 207 (H100).
"""

import triton
import triton.language as tl


@triton.jit
def quantized_matmul_row(  # type: ignore[no-untyped-def]
    x_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    n,
    k,
    n_tiles,
    tiles_per_scale,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """CHANNELS channels of the only row of x, over this split's tiles of columns, TILES at a time.

    Channels are the slowest dimension, so that a thread has several of the same columns and converts
    its elements of x once for them.
    """
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < n
    within = tl.arange(0, TILE)
    acc = tl.zeros((CHANNELS, TILES), tl.float32)
    per_split = tl.cdiv(tl.cdiv(n_tiles, TILES), tl.num_programs(1)) * TILES
    low = tl.program_id(1) * per_split
    high = tl.minimum(low + per_split, n_tiles)
    for start in tl.range(low, high, TILES, num_stages=STAGES):
        tile = start + tl.arange(0, TILES)
        column = tile[:, None] * TILE + within[None, :]
        inside = column < k
        rows = channel.to(tl.int64)[:, None, None] * k
        w = tl.load(
            w_ptr + rows + column[None, :, :],
            mask=is_channel[:, None, None] & inside[None, :, :],
            other=0,
        )
        x = tl.load(x_ptr + column, mask=inside, other=0.0)
        at = (tile // tiles_per_scale)[None, :] * n + channel[:, None]
        there = is_channel[:, None] & (tile < n_tiles)[None, :]
        scale = tl.load(scale_ptr + at, mask=there, other=0.0).to(tl.float32)
        products = w.to(tl.float32) * x.to(tl.float32)[None, :, :]
        acc += tl.sum(products, 2) * scale
    outs = out_ptr + tl.program_id(1).to(tl.int64) * n + channel
    tl.store(outs, tl.sum(acc, 1).to(out_ptr.dtype.element_ty), mask=is_channel)


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
