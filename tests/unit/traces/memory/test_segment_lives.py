"""Segments over a recording, and what was held at a moment."""

import numpy as np

from peakward.traces.memory.memory import Memory
from peakward.traces.memory.segment_lives import held_at, segment_lives
from peakward.traces.memory.snapshot_file import read

from .allocator import MIB, busy
from .files import real, written


def test_what_is_held_at_every_moment_adds_up(tmp_path):
    (device,) = Memory(read(written(tmp_path, busy(11, 200).snapshot()))).devices
    for position in range(0, len(device.events) + 1, 7):
        held = held_at(device.events, device.segments, position)
        assert sum(high - low for low, high in held) == device.balances.reserved[position]
        lives = segment_lives(device.events, device.segments)
        assert sum(each.n_bytes for each in lives if each.born <= position < each.freed) == sum(
            high - low for low, high in held
        )


def test_expandable_segments_grow_and_shrink():
    (device,) = Memory(read(real("expandable"))).devices
    for position in range(0, len(device.events) + 1, 97):
        held = held_at(device.events, device.segments, position)
        assert sum(high - low for low, high in held) == device.balances.reserved[position]
    assert len(held_at(device.events, device.segments, len(device.events))) == 2


def test_parts_given_back_from_the_middle(tmp_path):
    events = [
        {"action": action, "addr": at * 2 * MIB, "size": n * 2 * MIB, "time_us": 1}
        for action, at, n in (("segment_map", 8, 6), ("segment_unmap", 10, 2))
    ]
    segments = [
        {
            "address": at * 2 * MIB,
            "total_size": 4 * MIB,
            "is_expandable": True,
            "blocks": [{"size": 4 * MIB, "state": "inactive"}],
        }
        for at in (8, 12)
    ]
    value = {"segments": segments, "device_traces": [events]}
    (device,) = Memory(read(written(tmp_path, value))).devices
    assert [
        [
            (low // (2 * MIB), high // (2 * MIB))
            for low, high in held_at(device.events, device.segments, at)
        ]
        for at in (0, 1, 2)
    ] == [[], [(8, 14)], [(8, 10), (12, 14)]]
    assert np.array_equal(device.balances.reserved, [0, 12 * MIB, 8 * MIB])
