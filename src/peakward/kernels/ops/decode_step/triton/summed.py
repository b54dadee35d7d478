"""Blocks of rows of a stored matrix times one row of activations, the core of all products of a step.

The tiles of a block are in registers, DEPTH of them on their way, the first of the next block among them.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.decode_step.triton.held import added
from peakward.kernels.ops.decode_step.triton.stored import DENSE, INT8, row_of, tile


@triton.jit
def first_tiles(  # type: ignore[no-untyped-def]
    w_ptr,
    scale_ptr,
    block,
    n,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PER_WORD: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """The first DEPTH tiles of a block."""
    row = row_of(block, tl.arange(0, BLOCK), BLOCK, HALF)
    tiles = ()
    for chunk in tl.static_range(DEPTH):
        tiles += (tile(w_ptr, scale_ptr, row, n, chunk, K, FORMAT, PER_WORD, LANES, NATIVE),)  # type: ignore[assignment]
    return tiles


@triton.jit
def summed(  # type: ignore[no-untyped-def]
    tiles,
    x,
    factor,
    w_ptr,
    scale_ptr,
    block,
    next_block,
    n,
    type_: tl.constexpr,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PER_WORD: tl.constexpr,
    LANES: tl.constexpr,
    CHUNKS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """One block times one row of x.

    Args:
        tiles: the block's first DEPTH tiles.
        x, factor: see `held.held`.
        type_: of a dense matrix's elements.

    Returns:
        (BLOCK,) in fp32, and the first tiles of the next block.
    """
    row = row_of(block, tl.arange(0, BLOCK), BLOCK, HALF)
    next_row = row_of(next_block, tl.arange(0, BLOCK), BLOCK, HALF)
    channel_scale = 1.0
    if FORMAT == INT8:
        channel_scale = tl.load(scale_ptr + row, mask=row < n, other=0.0).to(tl.float32)
    acc = tl.zeros((BLOCK, LANES), tl.int32 if FORMAT == INT8 else tl.float32)
    for chunk in tl.static_range(CHUNKS):
        if chunk + DEPTH < CHUNKS:
            new = tile(w_ptr, scale_ptr, row, n, chunk + DEPTH, K, FORMAT, PER_WORD, LANES, NATIVE)
        else:
            new = tile(
                w_ptr,
                scale_ptr,
                next_row,
                n,
                chunk + DEPTH - CHUNKS,
                K,
                FORMAT,
                PER_WORD,
                LANES,
                NATIVE,
            )
        acc = added(acc, tiles[0][0], tiles[0][1], x[chunk], type_, FORMAT, LANES, NATIVE)
        tiles = tiles[1:] + (new,)
    if FORMAT == DENSE:
        total = tl.sum(acc, 1) * factor
    else:
        total = tl.sum(acc.to(tl.float32) * factor[None, :], 1) * channel_scale
    return total, tiles
