"""Products with weights of 8 and 4 bits that are widened in registers: their bytes are all that moves.

The weight is the left operand of a product, its rows those of the tile, so that few rows of x are its
narrow side (as in Marlin, Frantar et al. 2024, arXiv:2408.11743). A nibble becomes a float by its bits:
set below those of a power of two it is that power plus the nibble, less which, and less the zero, one
subtraction leaves it exact. A scale multiplies its group's product rather than its elements. For one
row of x there is a kernel of weights of 8 bits without products of tiles. Where the rows alone do not
fill the GPU, columns are split over programs, and a second kernel adds their results, always in the
same order.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

H100_MULTIPROCESSORS = 132
INT8_TILE = 128
"""Columns of a tile: of a weight in 8 bits; in 4 bits it is a group."""
MOST_SPLITS = 32
BLOCK_SUM = 256
FLYING_BYTES = 24 << 10
"""Of a program's weights on their way: three tiles of 128 columns in 4 bits, for 128 channels."""
PROGRAMS = 2
"""Of a multiprocessor, that columns are split for where rows of the weight make fewer."""


class Products(NamedTuple):
    """How a launch of products of tiles is cut up; no result depends on it beyond rounding."""

    n_splits: int
    block_n: int
    block_m: int
    num_warps: int
    num_stages: int


class Sums(NamedTuple):
    """How a launch for one row of x and weights of 8 bits is cut up."""

    n_splits: int
    block_n: int
    block_tiles: int
    num_warps: int
    num_stages: int


def settings_for(
    *, m: int, n: int, n_tiles: int, tile_bytes: int, nibbles: bool, n_multiprocessors: int
) -> Products | Sums:
    """By a sweep on an H100 (results/2026-11-22-h100-kernel-sweep-quantized_matmul): at 4,096 × 14,336,
    4,096² and 8,192² some two programs a multiprocessor were the fastest with 4 bits; narrower ones,
    and more of them, with 8, which was swept at the first alone.

    Args:
        n_tiles: of columns.
        tile_bytes: of a row of one.
    """
    block_m = min(64, max(16, triton.next_power_of_2(m)))
    settings: Products | Sums
    if m == 1 and not nibbles:
        settings = Sums(1, 16, max(1, 512 // tile_bytes), num_warps=4, num_stages=3)
    elif nibbles:
        block_n = 128
        num_stages = max(3, min(8, FLYING_BYTES // (block_n * tile_bytes)))
        settings = Products(1, block_n, block_m, num_warps=8, num_stages=num_stages)
    else:
        settings = Products(1, 32 if block_m <= 16 else 64, block_m, num_warps=4, num_stages=5)
    rows, step_tiles = (1, settings.block_tiles) if isinstance(settings, Sums) else (block_m, 1)
    programs = max(1, triton.cdiv(n, settings.block_n) * triton.cdiv(m, rows))
    n_splits = round(PROGRAMS * n_multiprocessors / programs)
    most = min(n_tiles // step_tiles // 4, MOST_SPLITS)
    return settings._replace(n_splits=max(1, min(n_splits, most)))


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
    tiles_per_scale,
    x_row,
    w_tile,
    w_row,
    NIBBLES: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """BLOCK_N channels of BLOCK_M rows of x, over this split's tiles of columns."""
    channel = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_channel = channel < n
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = row < m
    BYTES: tl.constexpr = TILE // 2 if NIBBLES else TILE
    byte = tl.arange(0, BYTES)
    x_rows = x_ptr + row.to(tl.int64)[None, :] * x_row + byte[:, None]
    type_: tl.constexpr = x_ptr.dtype.element_ty
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    per_split = tl.cdiv(n_tiles, tl.num_programs(1))
    low = tl.program_id(1) * per_split
    at = w_ptr + low.to(tl.int64) * w_tile
    at += channel.to(tl.int64)[:, None] * w_row + byte[None, :]
    for tile in range(low, tl.minimum(low + per_split, n_tiles)):
        if NIBBLES:
            w = tl.load(at, mask=is_channel[:, None], other=0)
            x = tl.load(x_rows + tile * TILE, mask=is_row[None, :], other=0.0)
            x_high = tl.load(x_rows + (tile * TILE + BYTES), mask=is_row[None, :], other=0.0)
            zero = 8.0
            if HAS_ZEROS:
                zeros = zero_ptr + tile * n + channel
                zero = tl.load(zeros, mask=is_channel, other=0).to(tl.float32)[:, None]
            product = tl.dot(_widened(w & 15, zero, type_), x, input_precision="ieee")
            product = tl.dot(_widened(w >> 4, zero, type_), x_high, product, input_precision="ieee")
        else:
            column = tile * TILE + byte
            w = tl.load(at, mask=is_channel[:, None] & (column < k)[None, :], other=0)
            inside = is_row[None, :] & (column < k)[:, None]
            x = tl.load(x_rows + tile * TILE, mask=inside, other=0.0)
            product = tl.dot(w.to(type_), x, input_precision="ieee")
        scales = scale_ptr + (tile // tiles_per_scale) * n + channel
        acc += product * tl.load(scales, mask=is_channel, other=0.0).to(tl.float32)[:, None]
        at += w_tile
    out_row = tl.program_id(1).to(tl.int64) * m + row
    outs = out_ptr + out_row[None, :] * n + channel[:, None]
    inside = is_channel[:, None] & is_row[None, :]
    tl.store(outs, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _sums(  # type: ignore[no-untyped-def]
    x_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    n,
    k,
    n_tiles,
    tiles_per_scale,
    w_tile,
    w_row,
    TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_TILES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """BLOCK_N channels of the only row of x, over this split's tiles of columns.

    The channels are the slowest dimension, so that a thread has several of the same columns and
    converts its elements of x once for them.
    """
    channel = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_channel = channel < n
    byte = tl.arange(0, TILE)
    acc = tl.zeros((BLOCK_N, BLOCK_TILES), tl.float32)
    per_split = tl.cdiv(tl.cdiv(n_tiles, tl.num_programs(1)), BLOCK_TILES) * BLOCK_TILES
    low = tl.program_id(1) * per_split
    high = tl.minimum(low + per_split, n_tiles)
    for start in tl.range(low, high, BLOCK_TILES, num_stages=NUM_STAGES):
        tile = start + tl.arange(0, BLOCK_TILES)
        is_tile = tile < n_tiles
        rows = channel.to(tl.int64)[:, None] * w_row + tile.to(tl.int64)[None, :] * w_tile
        at = w_ptr + rows[:, :, None] + byte[None, None, :]
        column = tile[:, None] * TILE + byte[None, :]
        there = is_channel[:, None] & is_tile[None, :]
        index = (tile // tiles_per_scale)[None, :] * n + channel[:, None]
        scale = tl.load(scale_ptr + index, mask=there, other=0.0).to(tl.float32)
        inside = column < k
        w = tl.load(at, mask=is_channel[:, None, None] & inside[None, :, :], other=0)
        x = tl.load(x_ptr + column, mask=inside, other=0.0)
        products = w.to(tl.float32) * x.to(tl.float32)[None, :, :]
        acc += tl.sum(products, 2) * scale
    outs = out_ptr + tl.program_id(1).to(tl.int64) * n + channel
    tl.store(outs, tl.sum(acc, 1).to(out_ptr.dtype.element_ty), mask=is_channel)


@triton.jit
def _widened(nibble, zero, type_: tl.constexpr):  # type: ignore[no-untyped-def]
    """nibble - zero, exactly: the bits of 2ᵖ (p bits of mantissa) with the nibble's are 2ᵖ + nibble.

    By assembly, two weights a register and 1.5 instructions each for these 5, products were at
    most 3% faster on an H100: it is not what they wait for.
    """
    if type_ == tl.bfloat16:
        wide = (nibble.to(tl.int16) | 0x4300).to(type_, bitcast=True)
        power = 128.0
    elif type_ == tl.float16:
        wide = (nibble.to(tl.int16) | 0x6400).to(type_, bitcast=True)
        power = 1024.0
    else:
        wide = (nibble.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True)
        power = 8388608.0
    return wide - (zero + power + tl.zeros((1, 1), tl.float32)).to(type_)


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
    settings: Products | Sums | None = None,
    n_multiprocessors: int = H100_MULTIPROCESSORS,
) -> Tensor:
    """As `reference.int8_matmul`, summed in fp32; every tensor contiguous but for x's rows."""
    n, k = weight.shape
    group = k // max(1, len(scale))
    # Half of one in fp32: sums of 128 in a row erred 1.6 times as much as torch's, and spilled.
    tile = INT8_TILE // 2 if x.dtype == torch.float32 else INT8_TILE
    tile = min(tile, group) if len(scale) > 1 else tile
    return _matmul(
        x,
        weight,
        scale,
        None,
        n=n,
        tile=tile,
        tiles_per_scale=group // tile if len(scale) > 1 else triton.cdiv(k, tile),
        w_strides=(tile, k),
        settings=settings,
        n_multiprocessors=n_multiprocessors,
    )


def int4_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    settings: Products | None = None,
    n_multiprocessors: int = H100_MULTIPROCESSORS,
) -> Tensor:
    """As `reference.int4_matmul`, summed in fp32; every tensor contiguous but for x's rows."""
    _, n, half = weight.shape
    return _matmul(
        x,
        weight,
        scale,
        zero,
        n=n,
        tile=2 * half,
        tiles_per_scale=1,
        w_strides=(n * half, half),
        settings=settings,
        n_multiprocessors=n_multiprocessors,
    )


def _matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    *,
    n: int,
    tile: int,
    tiles_per_scale: int,
    w_strides: tuple[int, int],
    settings: Products | Sums | None,
    n_multiprocessors: int,
) -> Tensor:
    m, k = x.shape
    n_tiles = triton.cdiv(k, tile)
    nibbles = weight.dtype == torch.uint8
    settings = settings or settings_for(
        m=m,
        n=n,
        n_tiles=n_tiles,
        tile_bytes=tile // 2 if nibbles else tile,
        nibbles=nibbles,
        n_multiprocessors=n_multiprocessors,
    )
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    n_splits = settings.n_splits
    parts = out
    if n_splits > 1:
        parts = torch.empty((n_splits, m, n), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(n, settings.block_n), n_splits)
    if isinstance(settings, Sums):
        _sums[grid](
            x,
            weight,
            scale,
            parts,
            n,
            k,
            n_tiles,
            tiles_per_scale,
            *w_strides,
            TILE=tile,
            BLOCK_N=settings.block_n,
            BLOCK_TILES=settings.block_tiles,
            NUM_STAGES=settings.num_stages,
            num_warps=settings.num_warps,
        )
    else:
        _products[(*grid, triton.cdiv(m, settings.block_m))](
            x,
            weight,
            scale,
            zero,
            parts,
            m,
            n,
            k,
            n_tiles,
            tiles_per_scale,
            x.stride(0),
            *w_strides,
            NIBBLES=nibbles,
            HAS_ZEROS=zero is not None,
            TILE=tile,
            BLOCK_N=settings.block_n,
            BLOCK_M=settings.block_m,
            num_warps=settings.num_warps,
            num_stages=settings.num_stages,
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
