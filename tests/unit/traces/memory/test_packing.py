"""What is free in segments."""

import pytest

from peakward.traces.memory.memory import Memory
from peakward.traces.memory.packing import free_pieces, segment_kinds
from peakward.traces.memory.segment_lives import held_at
from peakward.traces.memory.snapshot_file import read
from peakward.traces.memory.table import NONE, Block, Segment

from .allocator import busy
from .files import written


@pytest.mark.parametrize("seed", range(5))
def test_free_pieces_at_the_end_are_the_segments_own(seed, tmp_path):
    (device,) = Memory(read(written(tmp_path, busy(seed, 300).snapshot()))).devices
    end = len(device.events)
    held = held_at(device.events, device.segments, end)
    blocks = [block for each in device.segments for block in each.blocks]
    assert sorted(free_pieces(device.lifetimes, device.sizes.n_bytes, held, end)) == sorted(
        each.n_bytes for each in blocks if each.state == "inactive"
    )


def segment(pool=(0, 0), kind="large", is_expandable=False, states=("active_allocated",)):
    blocks = tuple(Block(512 * n, 512, 512, state, NONE) for n, state in enumerate(states))
    return Segment(0, 0, 512 * len(blocks), 0, kind, pool, is_expandable, blocks)


def test_kinds_and_split_blocks():
    small = segment(kind="small", states=("inactive",))
    split = segment(states=("inactive", "active_allocated", "inactive", "active_awaiting_free"))
    graph = segment(pool=(3, 1), states=("active_allocated", "inactive"))
    growing = segment(is_expandable=True)
    found = {each.name: each for each in segment_kinds((small, split, graph, growing))}
    assert next(iter(found)) == "large blocks"
    assert set(found) == {
        "large blocks",
        "small blocks",
        "large blocks, private pool 3.1",
        "large blocks, expandable",
    }
    plain = found["large blocks"]
    assert (plain.n_split, plain.split_bytes, plain.free_bytes) == (2, 1024, 1024)
    assert (plain.allocated_bytes, plain.reserved_bytes, plain.largest_free_bytes) == (
        512,
        2048,
        512,
    )
    # A segment that is free as a whole can be given back.
    assert (found["small blocks"].free_bytes, found["small blocks"].n_split) == (512, 0)
