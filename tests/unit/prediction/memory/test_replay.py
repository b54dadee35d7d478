"""A timeline through the allocator."""

import pytest

from peakward.prediction.memory.allocator import MIB, OverLimitError
from peakward.prediction.memory.replay import Replay, replay
from peakward.prediction.memory.timeline import Timeline
from peakward.records.memory import MemorySplit


def line():
    made = Timeline()
    made.keep(made.op(16 * MIB, category="parameters"))
    made.enter("forward")
    x = made.op(11 * MIB)
    made.enter("backward")
    made.op(100, *made.saved(x))
    made.enter("optimizer")
    made.op(24 * MIB)
    return made


def test_the_fullest_moment_and_what_it_holds():
    assert replay(line().lifetimes()) == Replay(
        phase="optimizer",
        split=MemorySplit(parameters_bytes=16 * MIB, temporaries_bytes=24 * MIB),
        reserved_bytes=(16 + 12 + 2 + 24) * MIB,
    )


def test_what_the_allocator_adds_is_told_apart():
    made = line()
    made.enter("backward")
    x = made.op(30 * MIB)
    made.op(100, *made.saved(x))
    found = replay(made.lifetimes())
    assert (found.phase, found.split) == (
        "backward",
        MemorySplit(
            parameters_bytes=16 * MIB,
            activations_bytes=30 * MIB,
            temporaries_bytes=100,
            rounding_bytes=512 - 100,
        ),
    )


def test_a_limit_is_kept_by_returning_free_segments():
    assert replay(line().lifetimes(), 40 * MIB).reserved_bytes == 40 * MIB
    with pytest.raises(OverLimitError):
        replay(line().lifetimes(), 39 * MIB)
