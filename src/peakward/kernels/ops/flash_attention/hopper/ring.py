"""Tiles in shared memory that one warp fills and warpgroups use, in turn.

Every buffer has two barriers: `full`, which the copy engine completes, and `empty`, at which each
user arrives when it has read it. Both count the same steps, so that a step's number says where its
tile lies and which of a barrier's alternating phases to wait for.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.core import _aggregate as aggregate


@aggregate
class Ring:
    """A ring of as many tiles as fit, used over and over."""

    tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    n_tiles: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles, full, empty, n_tiles):  # type: ignore[no-untyped-def]
        self.tiles = tiles
        self.full = full
        self.empty = empty
        self.n_tiles = gl.constexpr(n_tiles)

    @gluon.jit
    def tile(self, step):  # type: ignore[no-untyped-def]
        """The place of a step's tile."""
        return self.tiles.index(step % self.n_tiles)

    @gluon.jit
    def filled(self, step):  # type: ignore[no-untyped-def]
        """The barrier that reports the arrival of a step's tile."""
        return self.full.index(step % self.n_tiles)

    @gluon.jit
    def wait_full(self, step):  # type: ignore[no-untyped-def]
        mbarrier.wait(self.full.index(step % self.n_tiles), (step // self.n_tiles) & 1)

    @gluon.jit
    def wait_empty(self, step):  # type: ignore[no-untyped-def]
        """The first round of the ring finds it empty: a fresh barrier's other phase is over."""
        mbarrier.wait(self.empty.index(step % self.n_tiles), ((step // self.n_tiles) & 1) ^ 1)

    @gluon.jit
    def release(self, step):  # type: ignore[no-untyped-def]
        """One user is done with the tile."""
        mbarrier.arrive(self.empty.index(step % self.n_tiles), count=1)


@gluon.jit
def ring(descriptor, n_tiles: gl.constexpr, n_users: gl.constexpr):  # type: ignore[no-untyped-def]
    """A ring of tiles as the descriptor moves them."""
    tiles = tiles_of(descriptor, n_tiles)
    full = barriers(n_tiles, 1)
    empty = barriers(n_tiles, n_users)
    return Ring(tiles, full, empty, n_tiles)


@gluon.jit
def tiles_of(descriptor, n: gl.constexpr):  # type: ignore[no-untyped-def]
    """Room for `n` tiles as the descriptor moves them."""
    return gl.allocate_shared_memory(
        descriptor.dtype, [n] + descriptor.block_type.shape, descriptor.layout
    )


@gluon.jit
def barriers(n: gl.constexpr, n_arrivals: gl.constexpr):  # type: ignore[no-untyped-def]
    """`n` barriers, each complete after `n_arrivals` arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [n, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(n):
        mbarrier.init(made.index(i), count=n_arrivals)
    return made
