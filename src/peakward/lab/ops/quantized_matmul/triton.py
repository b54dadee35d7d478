"""Products with weights of 8 and 4 bits that are widened in registers: their bytes are all that moves.

The weight is the left operand of a product on tensor cores, so that few rows of x are its narrow side
(as in Marlin, Frantar et al. 2024, arXiv:2408.11743). What a lane of a warp loads by 16 bytes is what
its part of the operand is made of: which column of the weight is which of the product is free as long
as x's are taken alike, so that nothing is exchanged between lanes, and no shared memory is used, until
the warps of a program, each with other columns, are added up. A warp takes 128 columns at a time.

A stored number becomes a float by its bits: set below those of a power of two it is that power plus
the number, less which, and less the zero, one subtraction leaves it exact. A scale multiplies its
group's product rather than its elements. Where channels alone do not fill the GPU, columns are split
over programs too, and a second kernel adds their results, always in the same order.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

H100_MULTIPROCESSORS = 132
TILE = tl.constexpr(128)
"""Columns that a warp takes at once."""
WORDS = tl.constexpr(16)
"""Of a channel's tile in 4 bits."""
POWERS = {torch.float32: 0x4B000000, torch.float16: 0x64006400, torch.bfloat16: 0x43004300}
"""2ᵖ in bits, p being those of a type's mantissa; in 16 bits twice."""
MOST_SPLITS = 32
BLOCK_SUM = 256
WARPS = 16
"""Of a multiprocessor, that columns are split for where channels make fewer."""


class Settings(NamedTuple):
    """How a launch is cut up; no result depends on it beyond rounding."""

    n_splits: int
    """Programs that share columns."""
    channels: int
    """Of a warp: 16 or a larger power of two."""
    rows: int
    """Of x, of a warp: 8 or a larger power of two."""
    warps_k: int
    """Of a program, that share its columns."""
    warps_n: int
    """Of a program, of other channels each."""
    n_stages: int
    """Tiles on their way to shared memory; 1: none, loads go to registers and warps wait in turns."""


def settings_for(
    *, m: int, n: int, n_tiles: int, nibbles: bool, dtype: torch.dtype, n_multiprocessors: int
) -> Settings:
    """As many channels to a warp as leave every multiprocessor two programs of eight warps."""
    rows = min(32, max(8, triton.next_power_of_2(m)))
    channels = 32 if nibbles and n >= 2 * 32 * n_multiprocessors else 16
    settings = Settings(1, channels, rows, warps_k=8, warps_n=1, n_stages=1)
    if dtype == torch.float32:
        settings = Settings(1, 16, 8, warps_k=4, warps_n=1, n_stages=1)
    elif rows == 32:
        settings = settings._replace(warps_k=4, warps_n=2)
    programs = triton.cdiv(n, settings.channels * settings.warps_n) * triton.cdiv(m, settings.rows)
    n_warps = max(1, programs * settings.warps_k * settings.warps_n)
    n_splits = min(
        WARPS * n_multiprocessors // n_warps, n_tiles // (2 * settings.warps_k), MOST_SPLITS
    )
    return settings._replace(n_splits=max(1, n_splits))


@triton.jit
def _products(  # type: ignore[no-untyped-def]
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
    WARPS_K: tl.constexpr,
    WARPS_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """CHANNELS times WARPS_N channels of ROWS rows of x, over this split's tiles of columns.

    Lane 4 g + t of a warp has channels g R, …, g R + R - 1 and rows g, g + 8, … of x, R being
    CHANNELS / 8, all in the columns of t. Pointers are of two dimensions, what a lane loads at once
    and everything else, the latter in the order registers, warps, lanes: so Triton lays loads out, and
    leaves them where they are.
    """
    WARPS: tl.constexpr = WARPS_K * WARPS_N
    first = tl.program_id(0) * (CHANNELS * WARPS_N)
    row = tl.program_id(2) * ROWS
    per_split = tl.cdiv(tl.cdiv(n_tiles, WARPS_K), tl.num_programs(1)) * WARPS_K
    low = tl.program_id(1) * per_split
    high = tl.minimum(low + per_split, n_tiles)
    end = tl.minimum(k, high * TILE)
    # Columns of a lane beside one another: a quarter of a tile is one group at most.
    LANE: tl.constexpr = 8 if NIBBLES or GROUP == 32 else 16
    # What columns of the weight are counted in: tiles, or what is loaded.
    COUNT: tl.constexpr = 1 if NIBBLES else TILE * 8 // w_ptr.dtype.element_ty.primitive_bitwidth
    if NIBBLES:
        w_at, w_column, is_w = _nibbles(w_ptr, first, n, CHANNELS, WARPS_K, WARPS_N)
        w_step = n.to(tl.int64) * WORDS
        w_end = high
    else:
        w_at, w_column, is_w = _bytes(w_ptr, first, n, w_row, LANE, CHANNELS, WARPS_K, WARPS_N)
        w_step = COUNT
        w_end = tl.minimum(w_row, high * COUNT)
    x_at, x_column, is_x = _rows(x_ptr, row, m, x_row, LANE, ROWS, WARPS_K, WARPS_N)
    GROUPS: tl.constexpr = TILE // GROUP
    s_tile, s_group, s_channel = _scales(first, GROUPS, CHANNELS, WARPS_K, WARPS_N)

    acc = tl.zeros((WARPS, CHANNELS, ROWS), tl.float32)
    group = (low + s_tile) // tiles_per_scale * GROUPS + s_group
    scale = _of_groups(scale_ptr, group, s_channel, n, n_groups)
    zero = _of_groups(zero_ptr, group, s_channel, n, n_groups) if HAS_ZEROS else scale
    for tile in tl.range(low, high, WARPS_K, num_stages=STAGES):
        w = _words(w_at + tile * w_step, w_column, is_w, w_end - tile * COUNT)
        is_column = x_column < end - tile * TILE
        x = tl.load(x_at + tile * TILE, mask=is_x & is_column, other=0.0)
        # Ahead of their use: Triton loads ahead operands of products alone, and would lay those out
        # by zeros of 8 bits.
        group = (tile + WARPS_K + s_tile) // tiles_per_scale * GROUPS + s_group
        next_scale = _of_groups(scale_ptr, group, s_channel, n, n_groups)
        next_zero = next_scale
        if HAS_ZEROS:
            next_zero = _of_groups(zero_ptr, group, s_channel, n, n_groups)
        acc = _added(acc, x, w, scale, zero, power, NIBBLES, LANE, HAS_ZEROS, GROUPS)
        scale = next_scale
        zero = next_zero
    total = tl.sum(acc.reshape(WARPS_K, WARPS_N * CHANNELS, ROWS), 0)
    at = tl.arange(0, WARPS_N * CHANNELS)
    channel = first + at // CHANNELS * CHANNELS + at % 8 * (CHANNELS // 8) + at % CHANNELS // 8
    rows = row + tl.arange(0, ROWS)
    out_row = tl.program_id(1).to(tl.int64) * m + rows
    outs = out_ptr + out_row[None, :] * n + channel[:, None]
    inside = (channel < n)[:, None] & (rows < m)[None, :]
    tl.store(outs, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _added(  # type: ignore[no-untyped-def]
    acc,
    x,
    w,
    scale,
    zero,
    power,
    NIBBLES: tl.constexpr,
    LANE: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """acc (WARPS, CHANNELS, ROWS) and every warp's tile of the weight times its tile of x."""
    WARPS: tl.constexpr = acc.shape[0]
    CHANNELS: tl.constexpr = acc.shape[1]
    ROWS: tl.constexpr = acc.shape[2]
    xs = _quarters_of_x(x, NIBBLES, ROWS, WARPS)
    ws = _quarters_of_words(w, NIBBLES, LANE, CHANNELS, WARPS)
    scales = _by_quarter(scale, GROUPS, CHANNELS, WARPS)
    zeros = _by_quarter(zero, GROUPS, CHANNELS, WARPS)
    product = tl.zeros((WARPS, CHANNELS, ROWS), tl.float32)
    for quarter in tl.static_range(4):
        if not NIBBLES:
            wide = _of_bytes(ws[quarter], power, x.dtype, CHANNELS, WARPS)
        elif HAS_ZEROS:
            # 16 more than a nibble less its zero, of whole numbers, so that what is left to take from
            # the float is a constant: with a zero there, half of the subtractions were of one weight.
            more = 0x00100010 - zeros[quarter].permute(3, 0, 1, 2).to(tl.int32) * 0x00010001
            wide = _of_nibbles(ws[quarter], more, 16, power, x.dtype, CHANNELS, WARPS)
        else:
            wide = _of_nibbles(ws[quarter], None, 8, power, x.dtype, CHANNELS, WARPS)
        product = tl.dot(wide, xs[quarter], product, input_precision="ieee")
        # In fp32 by 32 columns: sums of 128 in a row erred 1.6 times as much as torch's.
        if x.dtype == tl.float32 or (quarter + 1) * GROUPS % 4 == 0:
            acc += product * _factors(scales[quarter], CHANNELS, ROWS, WARPS)
            product = tl.zeros((WARPS, CHANNELS, ROWS), tl.float32)
    return acc


@triton.jit
def _of_groups(ptr, group, channel, n, n_groups):  # type: ignore[no-untyped-def]
    inside = (channel < n) & (group < n_groups)[:, None]
    return tl.load(ptr + group[:, None] * n + channel, mask=inside, other=0)


@triton.jit
def _nibbles(w_ptr, first, n, CHANNELS: tl.constexpr, WARPS_K: tl.constexpr, WARPS_N: tl.constexpr):  # type: ignore[no-untyped-def]
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
def _bytes(  # type: ignore[no-untyped-def]
    w_ptr,
    first,
    n,
    w_row,
    LANE: tl.constexpr,
    CHANNELS: tl.constexpr,
    WARPS_K: tl.constexpr,
    WARPS_N: tl.constexpr,
):
    """As `_nibbles`, of words of 4 bytes: registers (R, parts of a tile), warps, g, t."""
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
def _words(at, column, is_channel, left):  # type: ignore[no-untyped-def]
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
def _rows(  # type: ignore[no-untyped-def]
    x_ptr,
    first,
    m,
    x_row,
    LANE: tl.constexpr,
    ROWS: tl.constexpr,
    WARPS_K: tl.constexpr,
    WARPS_N: tl.constexpr,
):
    """Where 8 columns of x lie each, those columns, and which rows there are.

    Of registers (rows, quarters of a tile), warps, g, t.
    """
    WARPS: tl.constexpr = WARPS_K * WARPS_N
    at = tl.arange(0, ROWS // 8 * 4 * WARPS * 32)
    row = first + at // (128 * WARPS) * 8 + at // 4 % 8
    quarter = at // (32 * WARPS) % 4
    part = quarter // (LANE // 8)
    column = part * (4 * LANE) + at % 4 * LANE + quarter % (LANE // 8) * 8
    column += at // (32 * WARPS_N) % WARPS_K * TILE
    column = column[:, None] + tl.arange(0, 8)[None, :]
    return x_ptr + (row.to(tl.int64) * x_row)[:, None] + column, column, (row < m)[:, None]


@triton.jit
def _scales(  # type: ignore[no-untyped-def]
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
def _quarters_of_x(x, NIBBLES: tl.constexpr, ROWS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """x by 32 columns, (WARPS, 32, ROWS) each.

    What is column c of a lane's 8 is, of the product, column 16 h + 4 t + e (0 ≤ h < 2, 0 ≤ e < 4) such
    that neither x nor the weight needs more than its loads: c is 4 (e / 2) + 2 h + e % 2 beside
    nibbles, 4 (e / 2) + 2 (e % 2) + h beside bytes.
    """
    x = x.reshape(ROWS // 8, 2, 2, WARPS, 8, 4, 2, 2, 2).permute(0, 3, 4, 5, 6, 7, 8, 1, 2)
    x0, x1, x2, x3 = _quarters(x)
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


@triton.jit
def _quarters_of_words(  # type: ignore[no-untyped-def]
    w,
    NIBBLES: tl.constexpr,
    LANE: tl.constexpr,
    CHANNELS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Of 32 columns each: (R, WARPS, 8, 4) in nibbles, in bytes two words each, (R, WARPS, 8, 4, 2)."""
    if NIBBLES:
        w = w.reshape(CHANNELS // 8, WARPS, 8, 4, 2, 2)
    elif LANE == 8:
        w = w.reshape(CHANNELS // 8, 2, 2, WARPS, 8, 4, 2).permute(0, 3, 4, 5, 6, 1, 2)
    else:
        w = w.reshape(CHANNELS // 8, 2, WARPS, 8, 4, 2, 2).permute(0, 2, 3, 4, 6, 1, 5)
    return _quarters(w)


@triton.jit
def _quarters(whole):  # type: ignore[no-untyped-def]
    """Along the last two dimensions, of 2 each."""
    even, odd = tl.split(whole)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _by_quarter(of_group, GROUPS: tl.constexpr, CHANNELS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(WARPS, 8, 4, R) for each quarter of a tile."""
    R: tl.constexpr = CHANNELS // 8
    if GROUPS == 4:
        parts = _quarters(of_group.reshape(2, 2, WARPS, 8, 4, R).permute(2, 3, 4, 5, 0, 1))
    elif GROUPS == 2:
        low, high = tl.split(of_group.reshape(2, WARPS, 8, 4, R).permute(1, 2, 3, 4, 0))
        parts = (low, low, high, high)
    else:
        whole = of_group.reshape(WARPS, 8, 4, R)
        parts = (whole, whole, whole, whole)
    return parts


@triton.jit
def _factors(scale, CHANNELS: tl.constexpr, ROWS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(WARPS, 8, 4, R) as (WARPS, CHANNELS, ROWS): of rows 2 t and 2 t + 1 a lane of t has products."""
    scale = scale.to(tl.float32).permute(0, 3, 1, 2).reshape(WARPS, CHANNELS, 1, 4, 1)
    scale = tl.broadcast_to(scale, (WARPS, CHANNELS, ROWS // 8, 4, 2))
    return scale.reshape(WARPS, CHANNELS, ROWS)


@triton.jit
def _of_nibbles(  # type: ignore[no-untyped-def]
    words,
    more,
    LESS: tl.constexpr,
    power,
    type_: tl.constexpr,
    CHANNELS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The 8 numbers of each word, and `more` in both halves if any, less LESS: (WARPS, CHANNELS, 32)."""
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
    return wide.permute(1, 0, 2, 6, 3, 5, 4).reshape(WARPS, CHANNELS, 32)


@triton.jit
def _of_bytes(words, power, type_: tl.constexpr, CHANNELS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The 4 numbers of each word, (WARPS, CHANNELS, 32): their lower 7 bits, less the sign's 128."""
    even = _floats(words & 0x007F007F, power, type_)
    even -= _floats(words & 0x00800080, power, type_)
    odd = _floats(words >> 8 & 0x007F007F, power, type_)
    odd -= _floats(words >> 8 & 0x00800080, power, type_)
    return tl.join(even, odd).permute(1, 0, 2, 6, 3, 4, 5).reshape(WARPS, CHANNELS, 32)


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


@triton.jit
def _add_up(  # type: ignore[no-untyped-def]
    parts_ptr,
    out_ptr,
    n_elements,
    n_splits,
    ALL_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < n_elements
    split = tl.arange(0, ALL_SPLITS)
    parts = parts_ptr + split.to(tl.int64)[:, None] * n_elements + offset[None, :]
    there = (split < n_splits)[:, None] & inside[None, :]
    total = tl.sum(tl.load(parts, mask=there, other=0.0), 0)
    tl.store(out_ptr + offset, total.to(out_ptr.dtype.element_ty), mask=inside)


def int8_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    *,
    settings: Settings | None = None,
    n_multiprocessors: int = H100_MULTIPROCESSORS,
) -> Tensor:
    """As `reference.int8_matmul`, summed in fp32; every tensor contiguous but for x's rows."""
    n, k = weight.shape
    groups = max(1, len(scale))
    group = min(TILE.value, k // groups) if groups > 1 else TILE.value
    words = weight
    if k % 4 == 0 and weight.storage_offset() % 4 == 0:
        words = weight.view(torch.int32)
    return _matmul(
        x,
        words,
        scale,
        None,
        n=n,
        nibbles=False,
        group=group,
        tiles_per_scale=k // groups // group if groups > 1 else triton.cdiv(k, group),
        settings=settings,
        n_multiprocessors=n_multiprocessors,
    )


def int4_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    settings: Settings | None = None,
    n_multiprocessors: int = H100_MULTIPROCESSORS,
) -> Tensor:
    """As `reference.int4_matmul`, summed in fp32; every tensor contiguous but for x's rows."""
    return _matmul(
        x,
        weight,
        scale,
        zero,
        n=weight.shape[1],
        nibbles=True,
        group=x.shape[1] // len(scale),
        tiles_per_scale=1,
        settings=settings,
        n_multiprocessors=n_multiprocessors,
    )


def _matmul(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    *,
    n: int,
    nibbles: bool,
    group: int,
    tiles_per_scale: int,
    settings: Settings | None,
    n_multiprocessors: int,
) -> Tensor:
    m, k = x.shape
    n_tiles = triton.cdiv(k, TILE.value)
    settings = settings or settings_for(
        m=m,
        n=n,
        n_tiles=n_tiles,
        nibbles=nibbles,
        dtype=x.dtype,
        n_multiprocessors=n_multiprocessors,
    )
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    n_splits = settings.n_splits
    parts = out
    if n_splits > 1:
        parts = torch.empty((n_splits, m, n), dtype=torch.float32, device=x.device)
    channels = settings.channels * settings.warps_n
    _products[(triton.cdiv(n, channels), n_splits, triton.cdiv(m, settings.rows))](
        x,
        words,
        scale,
        zero,
        parts,
        m,
        n,
        k,
        n_tiles,
        len(scale),
        tiles_per_scale,
        x.stride(0),
        words.stride(0),
        POWERS[x.dtype],
        NIBBLES=nibbles,
        GROUP=group,
        HAS_ZEROS=zero is not None,
        CHANNELS=settings.channels,
        ROWS=settings.rows,
        WARPS_K=settings.warps_k,
        WARPS_N=settings.warps_n,
        STAGES=settings.n_stages,
        num_warps=settings.warps_k * settings.warps_n,
        num_stages=1,
    )
    if n_splits > 1:
        _add_up[(triton.cdiv(out.numel(), BLOCK_SUM),)](
            parts,
            out,
            out.numel(),
            n_splits,
            ALL_SPLITS=triton.next_power_of_2(n_splits),
            BLOCK=BLOCK_SUM,
            num_warps=4,
        )
    return out
