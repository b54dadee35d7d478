"""Where words of a quantised weight and its scales lie, so that a lane loads what it multiplies."""

import triton
import triton.language as tl

TILE = tl.constexpr(128)
"""Columns that a warp takes at once."""
WORDS = tl.constexpr(16)
"""The words of a channel's tile in 4 bits."""


@triton.jit
def at_nibbles(  # type: ignore[no-untyped-def]
    w_ptr, first, n, CHANNELS: tl.constexpr, WARPS_K: tl.constexpr, WARPS_N: tl.constexpr
):
    """Where words of 8 nibbles lie in the first tiles, their columns, and which channels there are.

    Of registers R, warps, g, and the words of t and its neighbours.
    """
    R: tl.constexpr = CHANNELS // 8
    WARPS: tl.constexpr = WARPS_K * WARPS_N
    at = tl.arange(0, R * WARPS * 8)
    warp = at // 8 % WARPS
    channel = first + warp % WARPS_N * CHANNELS + at % 8 * R + at // (8 * WARPS)
    tile = warp // WARPS_N
    rows = w_ptr + ((tile.to(tl.int64) * n + channel) * WORDS)[:, None]
    return rows + tl.arange(0, WORDS)[None, :], tile[:, None], (channel < n)[:, None]


@triton.jit
def at_bytes(  # type: ignore[no-untyped-def]
    w_ptr,
    first,
    n,
    w_row,
    LANE: tl.constexpr,
    CHANNELS: tl.constexpr,
    WARPS_K: tl.constexpr,
    WARPS_N: tl.constexpr,
):
    """As `at_nibbles`, of words of 4 bytes: registers (R, parts of a tile), warps, g, t."""
    R: tl.constexpr = CHANNELS // 8
    WARPS: tl.constexpr = WARPS_K * WARPS_N
    PARTS: tl.constexpr = TILE // (4 * LANE)
    at = tl.arange(0, R * PARTS * WARPS * 32)
    warp = at // 32 % WARPS
    channel = first + warp % WARPS_N * CHANNELS + at // 4 % 8 * R + at // (32 * WARPS * PARTS)
    UNIT: tl.constexpr = w_ptr.dtype.element_ty.primitive_bitwidth // 8
    column = warp // WARPS_N * (TILE // UNIT) + at // (32 * WARPS) % PARTS * (4 * LANE // UNIT)
    column += at % 4 * (LANE // UNIT)
    column = column[:, None] + tl.arange(0, LANE // 4)[None, :] * (4 // UNIT)
    rows = w_ptr + (channel.to(tl.int64) * w_row)[:, None]
    return rows + column, column, (channel < n)[:, None]


@triton.jit
def loaded(at, column, is_channel, left):  # type: ignore[no-untyped-def]
    """Words whose first column is one of `left`; put together where only bytes are aligned."""
    if at.dtype.element_ty == tl.int32:
        words = tl.load(at, mask=is_channel & (column < left), other=0, cache_modifier=".cg")
    else:
        words = tl.zeros(at.shape, tl.int32)
        for byte in tl.static_range(4):
            inside = is_channel & (column + byte < left)
            words |= (tl.load(at + byte, mask=inside, other=0).to(tl.int32) & 255) << 8 * byte
    return words


@triton.jit
def at_scales(  # type: ignore[no-untyped-def]
    first,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WARPS_K: tl.constexpr,
    WARPS_N: tl.constexpr,
):
    """Whose R scales a lane needs: the tile, its group, the channels.

    Of registers (groups of a tile), warps, g, and t, of which all four load the same.
    """
    R: tl.constexpr = CHANNELS // 8
    at = tl.arange(0, GROUPS * WARPS_K * WARPS_N * 32)
    channel = first + at // 32 % WARPS_N * CHANNELS + at // 4 % 8 * R
    channel = channel[:, None] + tl.arange(0, R)[None, :]
    return at // (32 * WARPS_N) % WARPS_K, at // (32 * WARPS_K * WARPS_N), channel


@triton.jit
def of_groups(ptr, group, channel, n, n_groups):  # type: ignore[no-untyped-def]
    inside = (channel < n) & (group < n_groups)[:, None]
    return tl.load(ptr + group[:, None] * n + channel, mask=inside, other=0)


@triton.jit
def quarters_of_words(  # type: ignore[no-untyped-def]
    w,
    NIBBLES: tl.constexpr,
    LANE: tl.constexpr,
    CHANNELS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The quarters of words of 32 columns each: (R, WARPS, 8, 4) in nibbles; in bytes, two words each,
    (R, WARPS, 8, 4, 2)."""
    if NIBBLES:
        w = w.reshape(CHANNELS // 8, WARPS, 8, 4, 2, 2)
    elif LANE == 8:
        w = w.reshape(CHANNELS // 8, 2, 2, WARPS, 8, 4, 2).permute(0, 3, 4, 5, 6, 1, 2)
    else:
        w = w.reshape(CHANNELS // 8, 2, WARPS, 8, 4, 2, 2).permute(0, 2, 3, 4, 6, 1, 5)
    return quarters(w)


@triton.jit
def by_quarter(of_group, GROUPS: tl.constexpr, CHANNELS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(WARPS, 8, 4, R) for each quarter of a tile."""
    R: tl.constexpr = CHANNELS // 8
    if GROUPS == 4:
        parts = quarters(of_group.reshape(2, 2, WARPS, 8, 4, R).permute(2, 3, 4, 5, 0, 1))
    elif GROUPS == 2:
        low, high = tl.split(of_group.reshape(2, WARPS, 8, 4, R).permute(1, 2, 3, 4, 0))
        parts = (low, low, high, high)
    else:
        whole = of_group.reshape(WARPS, 8, 4, R)
        parts = (whole, whole, whole, whole)
    return parts


@triton.jit
def quarters(whole):  # type: ignore[no-untyped-def]
    """Along the last two dimensions, of 2 each."""
    even, odd = tl.split(whole)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth
