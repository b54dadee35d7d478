"""The times of a loop's steps, in bounded memory."""

import gc
import random
from itertools import count
from statistics import median

import pytest

from peakward.lab.measure.live.pulse import FIRST, NONE, SAMPLE, Collected, Collector, Pulse


def times(pulse, draws=True):
    return pulse.times(draws=draws, n_windows=0, windows_s=0.0)


def fed(*steps_s, **others):
    pulse = Pulse()
    for step_s in (*[9.0] * FIRST, *steps_s):
        pulse.add(step_s, **others)
    return pulse


def test_without_a_step_nothing_is_known():
    found = times(Pulse(), draws=False)
    assert (found.n_steps, found.median_s, found.spread_s, found.change) == (0, None, None, None)
    assert found.waited_s is None


def test_the_first_steps_do_not_count():
    found = times(fed(1.0, 2.0, 3.0, 4.0))
    assert (found.n_steps, found.total_s, found.median_s) == (4, 10.0, 2.5)
    assert found.spread_s == pytest.approx(2.5)


def test_the_sample_is_bounded_and_spread_over_the_loop():
    drawn = [1 + random.Random(0).random() for _ in range(10)]
    steps = [i / 1000 + drawn[i % 10] for i in range(20 * SAMPLE)]
    pulse = fed(*steps)
    assert SAMPLE <= len(pulse._sample) < 2 * SAMPLE
    assert times(pulse).median_s == pytest.approx(median(steps), rel=0.02)
    assert times(pulse).n_steps == len(steps)
    assert times(pulse).change > 0.5
    assert times(pulse).change_p_value < 1e-6


def test_a_pause_is_three_times_the_median_of_those_before():
    found = times(fed(*[1.0] * 20, 2.9, 3.0, 7.0, *[1.0] * 10)).pauses
    assert (found.n, found.beyond_s, found.longest_s) == (2, 8.0, 7.0)


def test_before_a_median_is_known_nothing_is_a_pause():
    assert times(fed(1.0, 1.0, 9.0)).pauses.n == 0


def test_what_a_pause_was_is_no_more_than_it_took():
    pulse = fed(*[1.0] * 20)
    pulse.add(5.0, waited_s=4.5, collected=Collected(2, 0.3, 0.2))
    pulse.add(5.0, waited_s=1.0, collected=Collected(1, 2.0, 2.0))
    found = times(pulse).pauses
    assert (found.beyond_s, found.waited_s, found.collected_s) == (8.0, 5.0, 2.0)


def test_waits_and_collections_are_summed():
    pulse = fed(1.0)
    pulse.add(1.0, waited_s=0.25, collected=Collected(2, 0.75, 0.5))
    pulse.add(1.0, waited_s=0.5)
    found = times(pulse)
    assert (found.waited_s, found.collected_s) == (0.75, 0.75)
    assert (found.n_collections, found.longest_collection_s) == (2, 0.5)


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
