"""A row held in registers as one tile, or as two where its width is little above a power of two.

As one, 36,000 columns are 65,536, and threads work at all of them: softmax of 4,096 such rows took 266 µs
on an H100, and as 32,768 and 4,096 199 (a copy 193). What is summed up is added lane by lane first, so
that the warps of a program wait once for both.
"""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def columns_of(TILE: tl.constexpr, COLUMNS: tl.constexpr, MORE: tl.constexpr) -> tl.tensor:
    """The columns of the first tile, COLUMNS, or of the second one behind it, MORE."""
    return tl.arange(0, COLUMNS) if TILE == 0 else COLUMNS + tl.arange(0, MORE)


@triton.jit
def added(tiles):  # type: ignore[no-untyped-def]
    """The sum of a row's tiles, (…, columns), as one tile as wide as the last."""
    total = tiles[0]
    if len(tiles) > 1:
        total = tl.sum(_beside(total, tiles[1]), len(total.shape) - 1) + tiles[1]
    return total


@triton.jit
def largest(tiles):  # type: ignore[no-untyped-def]
    """As `added`, of the maximum."""
    top = tiles[0]
    if len(tiles) > 1:
        top = tl.maximum(tl.max(_beside(top, tiles[1]), len(top.shape) - 1), tiles[1])
    return top


@triton.jit
def _beside(first, second):  # type: ignore[no-untyped-def]
    """The first tile by as many columns as the second has: those that a thread has of both, where they were
    loaded by vectors of as many elements."""
    n: tl.constexpr = second.shape[len(second.shape) - 1]
    if len(first.shape) == 1:
        first = first.reshape(first.shape[0] // n, n)
    else:
        first = first.reshape(first.shape[0], first.shape[1] // n, n)
    return first
