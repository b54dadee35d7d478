"""Tiles of a stored matrix: some rows, and as many columns as the lanes that share a row load at once.

All formats are read as words of 32 bits, PER_WORD columns each, four of a lane at once: 8 columns in 16 bits,
16 in int8, 32 in int4. So one arrangement of lanes serves all. Weights are read once, past the L1.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.dependent import bring

DENSE = tl.constexpr(0)
INT8 = tl.constexpr(1)
INT4 = tl.constexpr(2)
WORDS = tl.constexpr(16)
"""Words of 128 columns in int4 (see `quantized_matmul.reference.packed`)."""

THEN = ("then_parts", "then_stride", "then_bytes")
"""Arguments about the next kernel: other numbers are no other kernel."""


@triton.jit
def place_of(  # type: ignore[no-untyped-def]
    table_ptr,
    room,
    sequence,
    kv_heads,
    kv,
    position,
    there,
    PAGE_SIZE: tl.constexpr,
):
    """Where the key of head `kv` at a position of a sequence lies, in heads: in a cache (sequences, kv_heads,
    room), or in pages (pages, kv_heads, PAGE_SIZE) that the table (sequences, room) lists."""
    page = page_of(table_ptr, room, sequence, position, there, PAGE_SIZE)
    return place_in(page, room, sequence, kv_heads, kv, position, PAGE_SIZE)


@triton.jit
def page_of(table_ptr, room, sequence, position, there, PAGE_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The page of a sequence's position; 0 in a cache without pages. No kernel writes the table, so that it
    may be read before the wait."""
    page = position * 0
    if PAGE_SIZE:
        entry = table_ptr + sequence * room + position.to(tl.uint32) // PAGE_SIZE
        page = tl.load(entry, mask=there, other=0)
    return page


@triton.jit
def place_in(  # type: ignore[no-untyped-def]
    page, room, sequence, kv_heads, kv, position, PAGE_SIZE: tl.constexpr
):
    """As `place_of`, of a position whose page is known."""
    if PAGE_SIZE:
        place = (page * kv_heads + kv).to(tl.int64) * PAGE_SIZE + position.to(tl.uint32) % PAGE_SIZE
    else:
        place = (sequence * kv_heads + kv).to(tl.int64) * room + position
    return place


@triton.jit
def row_of(block, each, BLOCK: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """The row of the matrix that is number `each` of a block.

    With HALF the first half of a block has rows whose partners, HALF further, are its second half: the
    halves of a rotated head, or gate and up.
    """
    row = block * BLOCK + each
    if HALF:
        pair = block * (BLOCK // 2) + each % (BLOCK // 2)
        row = pair // HALF * (2 * HALF) + each // (BLOCK // 2) * HALF + pair % HALF
    return row


@triton.jit
def tile(  # type: ignore[no-untyped-def]
    w_ptr,
    scale_ptr,
    row,
    n,
    CHUNK: tl.constexpr,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PER_WORD: tl.constexpr,
    LANES: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """The words (BLOCK, 4 · LANES) of rows (BLOCK,) in one chunk of columns, and in int4 the scale of each
    lane's columns, (BLOCK, LANES)."""
    word = CHUNK * (4 * LANES) + tl.arange(0, 4 * LANES)
    is_row = (row < n)[:, None]
    long = row.to(tl.int64)[:, None]
    inside = is_row & (word < K // PER_WORD)[None, :]
    scale = 0.0
    if FORMAT == INT4:
        tiles = (word // WORDS).to(tl.int64)[None, :] * n
        at = w_ptr + (tiles + long) * WORDS + (word % WORDS)[None, :]
        group = CHUNK * (LANES // 4) + tl.arange(0, LANES) // 4
        of_group = scale_ptr + group.to(tl.int64)[None, :] * n + long
        is_there = is_row & (group < K // 128)[None, :]
        if NATIVE:
            scale = beside(of_group, is_there)
        else:
            scale = tl.load(of_group, mask=is_there, other=0.0).to(tl.float32)
    else:
        at = w_ptr + long * (K // PER_WORD) + word[None, :]
    return tl.load(at, mask=inside, other=0, cache_modifier=".cg"), scale


@triton.jit
def beside(at, is_there):  # type: ignore[no-untyped-def]
    """Loads 16 bits at each pointer, widened to fp32; 0 where there is nothing.

    A load of Triton's own would be laid out along rows, where elements are neighbours, and exchanged through
    shared memory before it meets what it multiplies, once for every tile.
    """
    bits = tl.inline_asm_elementwise(
        """{
        .reg .pred there;
        .reg .b16 found, none;
        mov.b16 found, 0;
        mov.b16 none, 0;
        setp.ne.s32 there, $2, 0;
        @there ld.global.nc.b16 found, [$1];
        mov.b32 $0, {found, none};
        }""",
        "=r,l,r",
        [at, is_there.to(tl.int32)],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    return bits.to(tl.int16).to(at.dtype.element_ty, bitcast=True).to(tl.float32)


@triton.jit
def prefetch(  # type: ignore[no-untyped-def]
    w_ptr,
    block,
    n,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PER_WORD: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    THREADS: tl.constexpr,
):
    """Asks for a block of rows to be brought into the L2. It reads nothing that a program could see, so it
    needs no wait."""
    thread = tl.arange(0, THREADS)
    if FORMAT == INT4:
        PARTS: tl.constexpr = 2 if HALF else 1
        TILES: tl.constexpr = K // 128
        for first in tl.static_range(0, TILES * PARTS, THREADS):
            each = first + thread
            row = row_of(block, each % PARTS * (BLOCK // PARTS), BLOCK, HALF)
            n_rows = tl.minimum(BLOCK // PARTS, n - row)
            at = w_ptr + ((each // PARTS).to(tl.int64) * n + row) * WORDS
            there = (row < n) & (each < TILES * PARTS)
            bring(at, tl.where(there, n_rows * (4 * WORDS), 0))
    else:
        ROW_BYTES: tl.constexpr = K // PER_WORD * 4
        PIECES: tl.constexpr = 2 if ROW_BYTES % 32 == 0 else 1
        row = row_of(block, thread // PIECES, BLOCK, HALF)
        at = w_ptr + (row.to(tl.int64) * ROW_BYTES + thread % PIECES * (ROW_BYTES // PIECES)) // 4
        there = (row < n) & (thread < BLOCK * PIECES)
        if ROW_BYTES % 16 == 0:
            bring(at, tl.where(there, ROW_BYTES // PIECES, 0))


@triton.jit
def bring_next(  # type: ignore[no-untyped-def]
    ptr, parts, stride, n_bytes, program, n_programs, THREADS: tl.constexpr
):
    """Asks, all programs together, for `parts` runs of n_bytes each, `stride` bytes apart, to be brought into
    the L2: what the next kernel reads first. At most 4096 · THREADS bytes a program."""
    each = program + n_programs * tl.arange(0, THREADS)
    pieces = tl.cdiv(n_bytes, 4096)
    part, first = each // tl.maximum(pieces, 1), each % tl.maximum(pieces, 1) * 4096
    there = part < tl.where(n_bytes > 0, parts, 0)
    at = ptr + (part.to(tl.int64) * stride + first)
    bring(at, tl.where(there, tl.minimum(n_bytes - first, 4096), 0))
