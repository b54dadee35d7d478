"""How kernels read and write long rows: by whole 16-byte vectors, and held in 16 bits.

A thread moves 16 bytes at once only where the compiler knows that they begin at a multiple of 16 and
are wanted all or none. Of 50,257 bf16 columns seven rows in eight begin inside a vector. Such a row is
its whole vectors, whose first place and number are multiples of VECTOR by the way they are computed, and
its edges: up to VECTOR - 1 elements before and behind these.
"""

import triton
import triton.language as tl

COMPILED: tl.constexpr = tl.constexpr(not triton.knobs.runtime.interpret)

PAIRS_FROM: tl.constexpr = tl.constexpr(2048)
"""Elements, of which each of 1,024 threads has two; fewer are no burden."""


@triton.jit
def whole_vectors(at, width, VECTOR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the whole vectors of the `width` elements from `at` on begin, and how many elements they
    have; `at` and `width` where VECTOR is 1."""
    first = (at + (VECTOR - 1)) // VECTOR * VECTOR
    n_inside = tl.maximum(width - (first - at).to(tl.int32), 0) // VECTOR * VECTOR
    return first, n_inside


@triton.jit
def edges(at, width, VECTOR: tl.constexpr):  # type: ignore[no-untyped-def]
    """The columns of a row outside of its whole vectors, 2·VECTOR, and which of them there are."""
    first, n_inside = whole_vectors(at, width, VECTOR)
    lane = tl.arange(0, 2 * VECTOR)
    column = (first - at).to(tl.int32) - VECTOR + lane + tl.where(lane < VECTOR, 0, n_inside)
    return column, (column >= 0) & (column < width)


@triton.jit
def packed(x):  # type: ignore[no-untyped-def]
    """x, of which the compiler does not know that it is what was loaded.

    It would keep 16-bit elements as the fp32 that they were converted to for a reduction until they are
    converted again, twice the registers: of 65,536 columns and 32 warps 144 bytes a thread were spilled,
    of which this leaves none.
    """
    if COMPILED and x.dtype.primitive_bitwidth == 16 and x.numel >= PAIRS_FROM:
        x = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2
        )
    return x
