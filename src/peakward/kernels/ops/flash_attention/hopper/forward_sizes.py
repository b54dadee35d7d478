"""The sizes that a forward kernel is compiled for, and the number of tiles of keys that a tile of
queries meets."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate as aggregate


@aggregate
class Sizes:
    """Known when the kernel is compiled."""

    causal: gl.constexpr
    keys: gl.constexpr
    rows: gl.constexpr
    d: gl.constexpr
    """Columns of a tile, a power of two: beyond head_dim the copy engine fills in zeros."""
    main: gl.constexpr
    rest: gl.constexpr
    """Columns that products take: of head dimension 80, 64 and 16 in place of 128."""
    warpgroups: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, causal, keys, rows, head_dim, warpgroups):  # type: ignore[no-untyped-def]
        self.causal = gl.constexpr(causal)
        self.keys = gl.constexpr(keys)
        self.rows = gl.constexpr(rows)
        width = 64 if head_dim == 64 else 128
        self.d = gl.constexpr(width)
        self.main = gl.constexpr(width if head_dim == width else 64)
        self.rest = gl.constexpr(0 if head_dim == width else head_dim - 64)
        self.warpgroups = gl.constexpr(warpgroups)


@gluon.jit
def n_blocks(block, q_len, k_len, sizes):  # type: ignore[no-untyped-def]
    """Tiles of keys that any query of the block sees: at least one, of which masks may leave nothing."""
    end = k_len
    if sizes.causal:
        queries = sizes.rows * sizes.warpgroups
        end = gl.minimum(k_len, (block + 1) * queries + k_len - q_len)
    return gl.maximum(1, (end + sizes.keys - 1) // sizes.keys)
