"""What a backward kernel is compiled for, and which queries a tile of keys meets."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate as aggregate


@aggregate
class Sizes:
    """Known when the kernel is compiled."""

    causal: gl.constexpr
    queries: gl.constexpr
    keys: gl.constexpr
    rows: gl.constexpr
    d: gl.constexpr
    n_kv_heads: gl.constexpr
    group: gl.constexpr
    """Heads that share keys and values."""

    @gluon.constexpr_function
    def __init__(self, causal, queries, keys, rows, d, n_kv_heads, group):  # type: ignore[no-untyped-def]
        self.causal = gl.constexpr(causal)
        self.queries = gl.constexpr(queries)
        self.keys = gl.constexpr(keys)
        self.rows = gl.constexpr(rows)
        self.d = gl.constexpr(d)
        self.n_kv_heads = gl.constexpr(n_kv_heads)
        self.group = gl.constexpr(group)


@gluon.jit
def first_block(block, q_len, k_len, sizes):  # type: ignore[no-untyped-def]
    """The first tile of queries of which any sees the tile of keys."""
    first = 0
    if sizes.causal:
        first = gl.maximum(0, block * sizes.keys - (k_len - q_len)) // sizes.queries
    return first
