"""When to stop: pure decisions, so every edge is a line here."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.lab.measure import timer
from peakward.lab.measure.timer import StepProgress
from peakward.records.measurement import Protocol
from peakward.stats.summary import median_interval

PROTOCOL = Protocol(min_steps=10, max_steps=50, max_timed_s=5.0, relative_half_width=0.01)
STEADY = [1.0, 1.001] * 10
RESTLESS = [1.0, 2.0] * 10


@pytest.mark.parametrize(
    ("step_s", "chunk"),
    [(1e-4, 50), (1e-6, 128), (2e-3, 3), (5e-3, 1), (1.0, 1), (0.0, 128)],
)
def test_a_chunk_is_about_5_ms(step_s, chunk):
    assert timer.chunk_steps(step_s) == chunk


def progress(times, issued, elapsed_s, since_look_s=None):
    """Of steps that were never looked at, unless said; times of None must not be read."""

    def look():
        assert times is not None, "a look that no rule needs"
        return times

    since_look_s = elapsed_s if since_look_s is None else since_look_s
    return StepProgress(issued, elapsed_s, len(times or ()), since_look_s, look)


@pytest.mark.parametrize(
    ("times", "issued", "elapsed_s", "done"),
    [
        (STEADY, 9, 100.0, False),  # min_steps come first
        (RESTLESS, 10, 5.0, True),  # time is up
        (None, 10, 5.0, True),
        (RESTLESS, 10, 4.9, False),
        (None, 50, 0.0, True),  # steps are up
        (STEADY, 20, 1.0, True),  # narrow enough
        (RESTLESS, 20, 1.0, False),
        (None, 20, 0.4, False),  # too soon to save anything
        ((), 20, 1.0, False),  # nothing known yet
    ],
)
def test_timing_done(times, issued, elapsed_s, done):
    assert timer.timing_done(progress(times, issued, elapsed_s), PROTOCOL) is done


@pytest.mark.parametrize(
    ("elapsed_s", "since_look_s", "looks"),
    [(0.6, 0.09, False), (0.6, 0.11, True), (3.0, 0.29, False), (3.0, 0.31, True)],
)
def test_looks_are_a_tenth_of_the_time_apart(elapsed_s, since_look_s, looks):
    times = STEADY if looks else None
    assert timer.timing_done(progress(times, 20, elapsed_s, since_look_s), PROTOCOL) is looks


def test_nothing_is_narrow_enough_for_a_width_of_0():
    protocol = msgspec.structs.replace(PROTOCOL, relative_half_width=0.0)
    assert not timer.timing_done(progress(None, 20, 1.0), protocol)


def test_no_interval_below_six_values():
    assert timer.half_width([1.0] * 5, 5) == math.inf
    assert timer.half_width([1.0] * 6, 6) == 0.0


@given(st.integers(0, 2**32), st.integers(20, 200))
def test_the_quick_half_width_is_near_the_exact_one(seed, n):
    draw = random.Random(seed)
    times = [draw.gauss(1.0, 0.05) for _ in range(n)]
    exact = median_interval(times)
    width = (exact.high - exact.low) / 2 / exact.estimate
    assert 0.5 * width <= timer.half_width(times, n) <= 2 * width + 0.01


@given(st.integers(0, 2**32))
def test_a_sample_speaks_for_all(seed):
    draw = random.Random(seed)
    times = [draw.gauss(1.0, 0.05) for _ in range(4000)]
    every = timer.half_width(times, 4000)
    assert timer.half_width(times[::16], 4000) == pytest.approx(every, rel=1.0)


@pytest.mark.parametrize(
    ("times", "issued", "elapsed_s", "done"),
    [
        ([60.0, *[1.0] * 10], 11, 70.0, True),  # steady; the compilation did not use up the time
        ([60.0, 1.0], 2, 61.0, False),  # too few, whatever the time
        ([60.0, 1.0, 1.0], 3, 62.0, False),
        ([1.0, 9.0, 1.0], 3, 11.0, True),  # never steady, but time is up
        (None, 100, 1.0, True),  # never steady, but steps are up
        (None, 2, 1.0, False),
        (None, 5, 0.09, False),
        ([], 5, 1.0, False),
    ],
)
def test_warmup_done(times, issued, elapsed_s, done):
    assert timer.warmup_done(progress(times, issued, elapsed_s), 5.0) is done


def test_between_looks_a_warmup_goes_on():
    assert not timer.warmup_done(progress(None, 11, 70.0, 0.09), 5.0)
    assert timer.warmup_done(progress([60.0, *[1.0] * 10], 11, 70.0, 0.11), 5.0)


def test_a_warmup_is_sampled_whole():
    assert timer.SAMPLE >= timer.MAX_WARMUP_STEPS


def test_a_warmup_that_was_cut_short_may_be_shown_enough_by_the_timed_steps():
    assert timer.unsteady_reason([9.0, 1.0, 1.0], [1.0, 1.001] * 5) is None


def test_a_warmup_that_was_not_enough_is_said_with_its_numbers():
    falling = [10.0 / (1 + i) for i in range(10)]
    reason = timer.unsteady_reason([30.0, 20.0, 10.5], falling)
    assert reason == "no steady step time after 3 warm-up steps in 60.5 s and 10 timed ones"
    fast = timer.unsteady_reason([0.03, 0.02, 0.0105], [each / 1000 for each in falling])
    assert fast == "no steady step time after 3 warm-up steps in 60.5 ms and 10 timed ones"
