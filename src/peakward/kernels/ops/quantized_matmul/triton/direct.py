"""Products with few rows of x, of which lanes load what they multiply too.

Nothing is exchanged between lanes until the warps of a program, each with other columns, are added up.
What is on its way is in registers, and a warp waits once for all of a step. Left to itself the assembler
moves half of x's loads behind the wait for the weight, and a step's later tiles behind the first.
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
    quarters,
)


@triton.jit
def quantized_matmul_direct(  # type: ignore[no-untyped-def]
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
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    WARPS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """CHANNELS channels of ROWS rows of x, over this split's tiles of columns, DEPTH of a warp at a time.

    Lane 4 g + t of a warp has channels g R, …, g R + R - 1 and rows g, g + 8, … of x, R being
    CHANNELS / 8, all in the columns of t. Pointers are of two dimensions, what a lane loads at once
    and everything else, the latter in the order registers, warps, lanes: so Triton lays loads out, and
    leaves them where they are.
    """
    first = tl.program_id(0) * CHANNELS
    row = tl.program_id(2) * ROWS
    per_split = tl.cdiv(tl.cdiv(n_tiles, WARPS), tl.num_programs(1)) * WARPS
    low = tl.program_id(1) * per_split
    high = tl.minimum(low + per_split, n_tiles)
    end = tl.minimum(k, high * TILE)
    # Columns of a lane beside one another: a quarter of a tile is one group at most.
    LANE: tl.constexpr = 8 if NIBBLES or GROUP == 32 else 16
    # What columns of the weight are counted in: tiles, or what is loaded.
    COUNT: tl.constexpr = 1 if NIBBLES else TILE * 8 // w_ptr.dtype.element_ty.primitive_bitwidth
    if NIBBLES:
        w_at, w_column, is_w = at_nibbles(w_ptr, first, n, CHANNELS, WARPS, 1)
        w_step = n.to(tl.int64) * WORDS
        w_end = high
    else:
        w_at, w_column, is_w = at_bytes(w_ptr, first, n, w_row, LANE, CHANNELS, WARPS, 1)
        w_step = COUNT
        w_end = tl.minimum(w_row, high * COUNT)
    x_at, x_column, is_x = _rows(x_ptr, row, m, x_row, LANE, ROWS, WARPS)
    GROUPS: tl.constexpr = TILE // GROUP
    s_tile, s_group, s_channel = at_scales(first, GROUPS, CHANNELS, WARPS, 1)

    acc = tl.zeros((WARPS, CHANNELS, ROWS), tl.float32)
    scales, zeros = _scales(
        scale_ptr, zero_ptr, low + s_tile, s_group, s_channel, n, n_groups, tiles_per_scale,
        GROUPS, HAS_ZEROS, WARPS, DEPTH,
    )  # fmt: skip
    for tile in tl.range(low, high, WARPS * DEPTH):
        xs = ()
        for depth in tl.static_range(DEPTH):
            at = tile + depth * WARPS
            is_column = x_column < end - at * TILE
            xs += (tl.load(x_at + at * TILE, mask=is_x & is_column, other=0.0),)  # type: ignore[assignment]
        # Ahead of their use: Triton would lay operands out by zeros of 8 bits.
        next_scales, next_zeros = _scales(
            scale_ptr, zero_ptr, tile + WARPS * DEPTH + s_tile, s_group, s_channel, n, n_groups,
            tiles_per_scale, GROUPS, HAS_ZEROS, WARPS, DEPTH,
        )  # fmt: skip
        # No load crosses it, and no product starts without the weight: x is on its way by then.
        tl.debug_barrier()
        ws = ()
        for depth in tl.static_range(DEPTH):
            at = tile + depth * WARPS
            ws += (loaded(w_at + at * w_step, w_column, is_w, w_end - at * COUNT),)  # type: ignore[assignment]
        for depth in tl.static_range(DEPTH):
            acc = added(
                acc,
                _quarters_of_x(xs[depth], NIBBLES, ROWS, WARPS),
                ws[depth],
                scales[depth],
                zeros[depth],
                power,
                NIBBLES,
                LANE,
                HAS_ZEROS,
                GROUPS,
                CHANNELS,
                WARPS,
            )
        scales = next_scales
        zeros = next_zeros
    total = tl.sum(acc, 0)
    at = tl.arange(0, CHANNELS)
    channel = first + at % 8 * (CHANNELS // 8) + at // 8
    rows = row + tl.arange(0, ROWS)
    out_row = tl.program_id(1).to(tl.int64) * m + rows
    outs = out_ptr + out_row[None, :] * n + channel[:, None]
    inside = (channel < n)[:, None] & (rows < m)[None, :]
    tl.store(outs, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _scales(  # type: ignore[no-untyped-def]
    scale_ptr,
    zero_ptr,
    tile,
    group,
    channel,
    n,
    n_groups,
    tiles_per_scale,
    GROUPS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    WARPS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The scales of DEPTH tiles of each warp; and their zeros, or the scales once more."""
    scales = ()
    zeros = ()
    for depth in tl.static_range(DEPTH):
        at = (tile + depth * WARPS) // tiles_per_scale * GROUPS + group
        scale = of_groups(scale_ptr, at, channel, n, n_groups)
        zero = of_groups(zero_ptr, at, channel, n, n_groups) if HAS_ZEROS else scale
        scales += (scale,)  # type: ignore[assignment]
        zeros += (zero,)  # type: ignore[assignment]
    return scales, zeros


@triton.jit
def _rows(  # type: ignore[no-untyped-def]
    x_ptr,
    first,
    m,
    x_row,
    LANE: tl.constexpr,
    ROWS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Where 8 columns of x lie each, those columns, and which rows there are.

    Of registers (rows, quarters of a tile), warps, g, t.
    """
    at = tl.arange(0, ROWS // 8 * 4 * WARPS * 32)
    row = first + at // (128 * WARPS) * 8 + at // 4 % 8
    quarter = at // (32 * WARPS) % 4
    part = quarter // (LANE // 8)
    column = part * (4 * LANE) + at % 4 * LANE + quarter % (LANE // 8) * 8
    column += at // 32 % WARPS * TILE
    column = column[:, None] + tl.arange(0, 8)[None, :]
    return x_ptr + (row.to(tl.int64) * x_row)[:, None] + column, column, (row < m)[:, None]


@triton.jit
def _quarters_of_x(x, NIBBLES: tl.constexpr, ROWS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """x by 32 columns, (WARPS, 32, ROWS) each.

    What is column c of a lane's 8 is, of the product, column 16 h + 4 t + e (0 ≤ h < 2, 0 ≤ e < 4) such
    that neither x nor the weight needs more than its loads: c is 4 (e / 2) + 2 h + e % 2 beside
    nibbles, 4 (e / 2) + 2 (e % 2) + h beside bytes.
    """
    x = x.reshape(ROWS // 8, 2, 2, WARPS, 8, 4, 2, 2, 2).permute(0, 3, 4, 5, 6, 7, 8, 1, 2)
    x0, x1, x2, x3 = quarters(x)
    return (
        _right(x0, NIBBLES, ROWS, WARPS),
        _right(x1, NIBBLES, ROWS, WARPS),
        _right(x2, NIBBLES, ROWS, WARPS),
        _right(x3, NIBBLES, ROWS, WARPS),
    )


@triton.jit
def _right(x, NIBBLES: tl.constexpr, ROWS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    x = x.permute(1, 5, 3, 4, 6, 0, 2) if NIBBLES else x.permute(1, 6, 3, 4, 5, 0, 2)
    return x.reshape(WARPS, 32, ROWS)
