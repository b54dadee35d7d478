"""Products with tens of rows of x, which the warps of a program, each with other channels, share.

Lanes that load x for themselves read all of it once for 32 channels: 235 MB of 64 rows by 4,096 for
14,336 channels, 43 µs from an H100's L2. A program of 128 channels reads a quarter of that, and widens
each weight once for 64 rows.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.quantized_matmul.triton.widened import added
from peakward.kernels.ops.quantized_matmul.triton.words import (
    TILE,
    WORDS,
    at_bytes,
    at_nibbles,
    at_scales,
    loaded,
    of_groups,
)


@triton.jit
def quantized_matmul_shared(  # type: ignore[no-untyped-def]
    x_ptr,
    w_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    m,
    n,
    k,
    n_tiles,
    n_groups,
    tiles_per_scale,
    x_row,
    w_row,
    power,
    NIBBLES: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    ROWS: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """16 WARPS channels of ROWS rows of x, over this split's tiles of columns.

    Lane 4 g + t of a warp has two channels, beside one another, which are rows g and g + 8 of its 16
    of the product: as a product on tensor cores has them, of four warps or of one.
    """
    CHANNELS: tl.constexpr = 16
    first = tl.program_id(0) * (CHANNELS * WARPS)
    row = tl.program_id(2) * ROWS
    per_split = tl.cdiv(n_tiles, tl.num_programs(1))
    low = tl.program_id(1) * per_split
    high = tl.minimum(low + per_split, n_tiles)
    end = tl.minimum(k, high * TILE)
    LANE: tl.constexpr = 8
    # What columns of the weight are counted in: tiles, or what is loaded.
    COUNT: tl.constexpr = 1 if NIBBLES else TILE * 8 // w_ptr.dtype.element_ty.primitive_bitwidth
    if NIBBLES:
        w_at, w_column, is_w = at_nibbles(w_ptr, first, n, CHANNELS, 1, WARPS)
        w_step = n.to(tl.int64) * WORDS
        w_end = high
    else:
        w_at, w_column, is_w = at_bytes(w_ptr, first, n, w_row, LANE, CHANNELS, 1, WARPS)
        w_step = COUNT
        w_end = tl.minimum(w_row, high * COUNT)
    GROUPS: tl.constexpr = TILE // GROUP
    s_tile, s_group, s_channel = at_scales(first, GROUPS, CHANNELS, 1, WARPS)
    rows = row + tl.arange(0, ROWS)
    column = tl.arange(0, 32)
    if NIBBLES:
        # Which column of x is the product's 16 h + 8 (e / 2) + 2 t + e % 2, where `added` has the
        # weight's: by pairs, so that they go to shared memory in that order with no register between.
        column = column // 2 % 4 * 8 + column // 8 % 2 * 4 + column // 16 * 2 + column % 2
    column = column[None, :]
    x_at = x_ptr + rows.to(tl.int64)[:, None] * x_row + column
    is_row = (rows < m)[:, None]

    acc = tl.zeros((CHANNELS * WARPS, ROWS), tl.float32)
    group = (low + s_tile) // tiles_per_scale * GROUPS + s_group
    scale = of_groups(scale_ptr, group, s_channel, n, n_groups)
    zero = of_groups(zero_ptr, group, s_channel, n, n_groups) if HAS_ZEROS else scale
    for tile in tl.range(low, high, num_stages=STAGES):
        w = loaded(w_at + tile * w_step, w_column, is_w, w_end - tile * COUNT)
        left = end - tile * TILE
        at = x_at + tile * TILE
        x0 = tl.load(at, mask=is_row & (column < left), other=0.0)
        x1 = tl.load(at + 32, mask=is_row & (column + 32 < left), other=0.0)
        x2 = tl.load(at + 64, mask=is_row & (column + 64 < left), other=0.0)
        x3 = tl.load(at + 96, mask=is_row & (column + 96 < left), other=0.0)
        xs = (
            _right(x0, NIBBLES, ROWS),
            _right(x1, NIBBLES, ROWS),
            _right(x2, NIBBLES, ROWS),
            _right(x3, NIBBLES, ROWS),
        )
        group = (tile + 1 + s_tile) // tiles_per_scale * GROUPS + s_group
        next_scale = of_groups(scale_ptr, group, s_channel, n, n_groups)
        next_zero = next_scale
        if HAS_ZEROS:
            next_zero = of_groups(zero_ptr, group, s_channel, n, n_groups)
        acc = added(
            acc, xs, w, scale, zero, power, NIBBLES, LANE, HAS_ZEROS, GROUPS, CHANNELS, WARPS
        )
        scale = next_scale
        zero = next_zero
    at = tl.arange(0, CHANNELS * WARPS)
    channel = first + at // 16 * 16 + at % 8 * 2 + at % 16 // 8
    out_row = tl.program_id(1).to(tl.int64) * m + rows
    outs = out_ptr + out_row[None, :] * n + channel[:, None]
    inside = (channel < n)[:, None] & (rows < m)[None, :]
    tl.store(outs, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _right(x, NIBBLES: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(32, ROWS). Beside bytes a pair of columns is of two that are not neighbours in memory."""
    if NIBBLES:
        x = x.trans()
    else:
        x = x.reshape(ROWS, 4, 2, 2, 2).permute(4, 2, 1, 3, 0).reshape(32, ROWS)
    return x
