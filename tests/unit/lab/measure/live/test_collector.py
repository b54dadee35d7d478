"""Python's garbage collector, timed by its callbacks."""

import gc
from itertools import count

import pytest

from peakward.lab.measure.live.collector import NONE, Collector


@pytest.fixture
def collector():
    """Its clock counts its readings."""
    ticks = count()
    made = Collector(lambda: float(next(ticks)))
    enabled = gc.isenabled()
    gc.disable()
    yield made
    made.stop()
    if enabled:
        gc.enable()


def test_each_collection_is_two_readings(collector):
    collector.start()
    gc.collect()
    gc.collect(0)
    assert collector.total_s() == 2.0
    assert collector.taken() == (2, 2.0, 1.0)
    assert collector.taken() == NONE


def test_afterwards_the_interpreter_is_as_before(collector):
    before = list(gc.callbacks)
    collector.start()
    assert len(gc.callbacks) == len(before) + 1
    collector.stop()
    collector.stop()
    assert gc.callbacks == before
    gc.collect()
    assert collector.taken() == NONE


def test_one_that_began_before_is_not_counted(collector):
    collector._called("stop", {})
    assert collector.taken() == NONE
