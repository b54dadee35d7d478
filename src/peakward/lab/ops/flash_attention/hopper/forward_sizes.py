"""What a forward kernel is compiled for, and how many tiles of keys a tile of queries meets."""

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
    warpgroups: gl.constexpr
    pairs: gl.constexpr
    carried: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, causal, keys, rows, d, warpgroups, pairs, carried):  # type: ignore[no-untyped-def]
        self.causal = gl.constexpr(causal)
        self.keys = gl.constexpr(keys)
        self.rows = gl.constexpr(rows)
        self.d = gl.constexpr(d)
        self.warpgroups = gl.constexpr(warpgroups)
        self.pairs = gl.constexpr(pairs)
        self.carried = gl.constexpr(carried)


@gluon.jit
def n_blocks(block, q_len, k_len, sizes):  # type: ignore[no-untyped-def]
    """Tiles of keys that any query of the block sees: at least one, of which masks may leave nothing."""
    end = k_len
    if sizes.causal:
        queries = sizes.rows * sizes.warpgroups
        end = gl.minimum(k_len, (block + 1) * queries + k_len - q_len)
    return gl.maximum(1, (end + sizes.keys - 1) // sizes.keys)
