"""The sizes that a backward kernel is compiled for, the queries that a tile of keys meets, and tiles in
two pieces."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate as aggregate


@aggregate
class Sizes:
    """Known when the kernel is compiled."""

    causal: gl.constexpr
    queries: gl.constexpr
    at_once: gl.constexpr
    parts: gl.constexpr
    """The number of parts of a tile of queries; each part has the queries that are taken at once."""
    keys: gl.constexpr
    rows: gl.constexpr
    main: gl.constexpr
    rest: gl.constexpr
    """Columns that products take: of head dimension 80, 64 and 16."""
    n_heads: gl.constexpr
    group: gl.constexpr
    """Heads that share keys and values. Each has tiles of its own: one program for all of them is four
    times as long over a tile of four, falls out of step with the others that read the same queries, and
    finds them in the L2 no more (32 heads on 8, 4,096 tokens: 4.12 ms, cuDNN 2.95)."""

    @gluon.constexpr_function
    def __init__(self, causal, queries, at_once, keys, rows, main, rest, n_heads, group):  # type: ignore[no-untyped-def]
        self.causal = gl.constexpr(causal)
        self.queries = gl.constexpr(queries)
        self.at_once = gl.constexpr(at_once)
        self.parts = gl.constexpr(queries // at_once)
        self.keys = gl.constexpr(keys)
        self.rows = gl.constexpr(rows)
        self.main = gl.constexpr(main)
        self.rest = gl.constexpr(rest)
        self.n_heads = gl.constexpr(n_heads)
        self.group = gl.constexpr(group)


@aggregate
class Tile:
    """Rows of an operand, in two pieces: where head_dim has no rest that is the main one again."""

    main: gl.shared_memory_descriptor
    rest: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, main, rest):  # type: ignore[no-untyped-def]
        self.main = main
        self.rest = rest

    @gluon.jit
    def rows(self, first: gl.constexpr, n: gl.constexpr):  # type: ignore[no-untyped-def]
        """Some of them."""
        return Tile(self.main.slice(first, n, 0), self.rest.slice(first, n, 0))


@gluon.jit
def tile(main, rest, n_rows: gl.constexpr, sizes):  # type: ignore[no-untyped-def]
    """As the copy engine left its pieces."""
    main = main.reshape([n_rows, sizes.main])
    return Tile(main, rest.reshape([n_rows, sizes.rest]) if sizes.rest else main)


@aggregate
class Rests:
    """The rests of tiles, which come and go with their main pieces."""

    q: gl.shared_memory_descriptor
    dout: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    out: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, q, dout, k, v, out):  # type: ignore[no-untyped-def]
        self.q = q
        self.dout = dout
        self.k = k
        self.v = v
        self.out = out


@gluon.jit
def first_block(block, q_len, k_len, sizes):  # type: ignore[no-untyped-def]
    """The first tile of queries of which any sees the tile of keys."""
    first = 0
    if sizes.causal:
        first = gl.maximum(0, block * sizes.keys - (k_len - q_len)) // sizes.queries
    return first
