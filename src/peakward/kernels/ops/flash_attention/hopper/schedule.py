"""Chooses the tile that a program works on next.

Tiles of a causal pass differ in work. Programs therefore stay resident and draw tiles from a counter,
heaviest first. Dealt in a zigzag ahead of time, causal 16,384 with head dimension 128 ran at 426
TFLOP/s on an H100, drawn at 613 (2026-11-22). With 512 tokens, dealt a block further each time, they
took 114 µs for 111 (128 wide) and 131 for 135 (64 wide).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.core import _aggregate as aggregate

from peakward.kernels.ops.flash_attention.hopper.ring import barriers

L2_BYTES = 8 << 20
"""The part of the L2 (50 MiB on an H100) for the keys and values that are worked on at once. With 16
MiB 512 causal tokens took 140 µs for 136, 1,024 and more as long (head dimension 64)."""
TILES_A_PROGRAM = 2
"""A causal tile has up to twice the mean's work: begun when little else is left, it is waited for."""


@aggregate
class Announcements:
    """Tiles on their way from the warp that draws them to the warpgroups that work on them."""

    places: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, places, full, empty):  # type: ignore[no-untyped-def]
        self.places = places
        self.full = full
        self.empty = empty

    @gluon.jit
    def announce(self, block, head, turn):  # type: ignore[no-untyped-def]
        """Announces a tile; block -1 ends the work."""
        slot = turn % 2
        mbarrier.wait(self.empty.index(slot), ((turn // 2) & 1) ^ 1)
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        self.places.index(2 * slot).store(gl.full([1], block, gl.int32, layout=layout))
        self.places.index(2 * slot + 1).store(gl.full([1], head, gl.int32, layout=layout))
        mbarrier.arrive(self.full.index(slot), count=1)

    @gluon.jit
    def take(self, turn):  # type: ignore[no-untyped-def]
        """(block, head) of a turn."""
        slot = turn % 2
        mbarrier.wait(self.full.index(slot), (turn // 2) & 1)
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        block = gl.max(self.places.index(2 * slot).load(layout), 0)
        head = gl.max(self.places.index(2 * slot + 1).load(layout), 0)
        mbarrier.arrive(self.empty.index(slot), count=1)
        return block, head


@gluon.jit
def announcements(n_takers: gl.constexpr):  # type: ignore[no-untyped-def]
    """Places for two turns, so that the next tile is known before this one is done."""
    places = gl.allocate_shared_memory(gl.int32, [4, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return Announcements(places, barriers(2, 1), barriers(2, n_takers))


@gluon.jit
def draw(counter):  # type: ignore[no-untyped-def]
    """A number that no program has drawn before.

    The counter carries no other information, so nothing need be ordered with it. Fences around it would
    keep the copying warp from copying.
    """
    return gl.atomic_add(counter, 1, sem="relaxed")


@gluon.jit
def place(index, n_blocks, heads_at_once, n_heads):  # type: ignore[no-untyped-def]
    """(block, head) of a tile: all blocks of as many heads as are worked on at once, then the next heads.

    Within these heads block 0 comes first of all heads, then block 1.
    """
    per_section = heads_at_once * n_blocks
    section = index // per_section
    rest = index % per_section
    width = min(heads_at_once, n_heads - section * heads_at_once)
    return rest // width, section * heads_at_once + rest % width


def balanced(n_blocks: int, n_programs: int) -> int:
    """Heads of which the tiles, unequal in work, are done by all programs at nearly the same time."""
    return -(-TILES_A_PROGRAM * n_programs // n_blocks)


def heads_at_once(wanted: int, n_heads: int, *, least: int) -> int:
    """As many as are wanted or a few more, and no fewer at a time, the last ones included, than `least`."""
    for width in range(max(least, wanted), n_heads):
        last = n_heads % width
        if last == 0 or last >= least:
            return width
    return n_heads
