"""A block of a stored matrix times several rows of activations on tensor cores, the core of their products.

The weight is the left operand, so that the few rows are the product's narrow side. It comes through shared
memory, a step's columns at a time, and is widened in registers. A sum of squares is no part of it: who makes
rows leaves them times the gain of the next norm, and the sums of their squares by block, and the norm is one
factor a row behind the product.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.decode_step.triton.stored import INT4, INT8, WORDS, row_of
from peakward.kernels.ops.dependent import bring

POWER = tl.constexpr(0x43004300)
"""128 in bf16, twice: with a nibble below it is 128 and the nibble."""


@triton.jit
def asked(  # type: ignore[no-untyped-def]
    w_ptr,
    scale_ptr,
    block,
    first,
    n,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    COLUMNS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Asks for COLUMNS columns of a block's rows, from number `first` on, to be brought into the L2, in int4
    with the scales of all. It reads nothing that a program could see, so it needs no wait."""
    each = tl.arange(0, 32 * WARPS)
    if FORMAT == INT4:
        RUNS: tl.constexpr = 2 if HALF else 1
        row = row_of(block, each % RUNS * (BLOCK // RUNS), BLOCK, HALF)
        tile = first // 128 + each // RUNS
        at = w_ptr + (tile.to(tl.int64) * n + row) * WORDS
        n_bytes = tl.minimum(BLOCK // RUNS, n - row) * (4 * WORDS)
        there = (row < n) & (each < COLUMNS // 128 * RUNS) & (tile < K // 128)
        bring(at, tl.where(there, n_bytes, 0))
        SCALE: tl.constexpr = scale_ptr.dtype.element_ty.primitive_bitwidth // 8
        at_scale = (each // RUNS).to(tl.int64) * n + row
        there = (row + BLOCK // RUNS <= n) & (each < K // 128 * RUNS)
        there = there & (at_scale * SCALE % 16 == 0)
        if BLOCK // RUNS * SCALE % 16 == 0:
            bring(scale_ptr + at_scale, tl.where(there, BLOCK // RUNS * SCALE, 0))
    else:
        ITEM: tl.constexpr = w_ptr.dtype.element_ty.primitive_bitwidth // 8
        row = row_of(block, each % BLOCK, BLOCK, HALF)
        there = (row < n) & (each < BLOCK) & (first + COLUMNS <= K)
        if K * ITEM % 16 == 0 and COLUMNS * ITEM % 16 == 0:
            at = w_ptr + (row.to(tl.int64) * K + first)
            bring(at, tl.where(there, COLUMNS * ITEM, 0))


@triton.jit
def multiplied(  # type: ignore[no-untyped-def]
    x_ptr,
    w_ptr,
    scale_ptr,
    block,
    low,
    high,
    m,
    n,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    HALF: tl.constexpr,
):
    """A block of the matrix's rows times x (m, K), over the steps from low to high: (BLOCK, ROWS) in fp32.

    A step takes PARTS times COLUMNS columns, each part on warps of its own; of int4 COLUMNS is 128, a group.
    """
    channel = row_of(block, tl.arange(0, BLOCK), BLOCK, HALF)
    row = tl.arange(0, ROWS)[None, :, None]
    type_: tl.constexpr = x_ptr.dtype.element_ty
    # Three dimensions: parts, rows, columns.
    part = tl.arange(0, PARTS)[:, None, None]
    place = tl.arange(0, COLUMNS)[None, None, :]
    is_channel = (channel < n)[None, :, None]
    long = channel.to(tl.int64)[None, :, None]
    if FORMAT == INT4:
        # The columns of x in the order of those in words.
        place = place // 8 % 4 * 32 + place // 32 * 8 + place % 8
        w_at = w_ptr + (part.to(tl.int64) * n + long) * WORDS + tl.arange(0, WORDS)[None, None, :]
        w_step = n.to(tl.int64) * (PARTS * WORDS)
        scale_at = scale_ptr + part * n + channel[None, :, None]
        scale = _scales(scale_at, part, is_channel, n, low, K, PARTS)
    else:
        w_at = w_ptr + long * K + part * COLUMNS + place
        w_step = PARTS * COLUMNS
    column = part * COLUMNS + place
    x_at = x_ptr + row * K + column
    size: tl.constexpr = (BLOCK, ROWS) if PARTS == 1 else (PARTS, BLOCK, ROWS)
    acc = tl.zeros(size, tl.float32)
    for step in tl.range(low, high, num_stages=STAGES):
        first = step * (PARTS * COLUMNS)
        x = tl.load(x_at + first, mask=(row < m) & (first + column < K), other=0.0)
        if FORMAT == INT4:
            inside = is_channel & (first + part * COLUMNS < K)
            words = tl.load(w_at + step * w_step, mask=inside, other=0)
            # A step ahead by hand: the compiler pipelines what is multiplied alone, and where something is
            # handed on for two steps nothing.
            next_scale = _scales(scale_at, part, is_channel, n, step + 1, K, PARTS)
            product = _multiplied(_widened(words, type_), x, tl.zeros(size, tl.float32))
            acc += product * (scale.reshape(BLOCK, 1) if PARTS == 1 else scale)
            scale = next_scale
        else:
            w = tl.load(w_at + first, mask=is_channel & (first + column < K), other=0)
            acc = _multiplied(w.to(type_), x, acc)
    if PARTS > 1:
        acc = tl.sum(acc, 0)
    if FORMAT == INT8:
        acc *= tl.load(scale_ptr + channel, mask=channel < n, other=0.0).to(tl.float32)[:, None]
    return acc


@triton.jit
def _multiplied(w, x, acc):  # type: ignore[no-untyped-def]
    """acc and w (parts, BLOCK, columns) times x (parts, ROWS, columns), part by part."""
    if w.shape[0] == 1:
        w, x = w.reshape(w.shape[1], w.shape[2]), x.reshape(x.shape[1], x.shape[2])
        acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    else:
        acc = tl.dot(w, tl.permute(x, (0, 2, 1)), acc, input_precision="ieee")
    return acc


@triton.jit
def _scales(  # type: ignore[no-untyped-def]
    scale_at, part, is_channel, n, step, K: tl.constexpr, PARTS: tl.constexpr
):
    """The scales (PARTS, BLOCK, 1) of a step's groups in int4."""
    inside = is_channel & (step * PARTS + part < K // 128)
    return tl.load(scale_at + step * PARTS * n, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _widened(words, type_: tl.constexpr):  # type: ignore[no-untyped-def]
    """Words of int4 (parts, BLOCK, n) as their numbers from -8 to 7, (parts, BLOCK, 8 n)."""
    # Even columns of a word are in its lower half, odd ones in the upper.
    pair0, pair1 = words & 0x000F000F, words >> 4 & 0x000F000F
    pair2, pair3 = words >> 8 & 0x000F000F, words >> 12 & 0x000F000F
    pairs = tl.join(tl.join(pair0, pair2), tl.join(pair1, pair3))
    if type_ == tl.bfloat16:
        # 128 and the number by its bits, exact in bf16: a conversion takes more than its subtraction.
        pairs |= POWER
        wide = tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16)).to(type_, bitcast=True)
        numbers = wide - tl.full((1,), 136.0, type_)
    else:
        numbers = (tl.join(pairs & 15, pairs >> 16) - 8).to(type_)
    return numbers.reshape(words.shape[0], words.shape[1], 8 * words.shape[2])
