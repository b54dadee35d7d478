"""Points to draw, and ranges that were open."""

import numpy as np

from peakward.traces.memory.balances import Balances
from peakward.traces.memory.table import Annotation
from peakward.traces.memory.timeline import N_STRETCHES, open_ranges, timeline


def test_no_peak_is_lost_and_points_are_few():
    rng = np.random.default_rng(0)
    held = rng.integers(0, 1000, 20_000)
    time_us = np.sort(rng.integers(0, 10**6, 20_000))
    found = timeline(Balances(held, held, held * 2, held), time_us)
    assert len(found) <= N_STRETCHES + 1
    assert max(each.allocated_bytes for each in found) == held.max()
    assert max(each.reserved_bytes for each in found) == 2 * held.max()
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)


def test_events_all_at_once():
    held = np.array([0, 5, 3])
    found = timeline(Balances(held, held, held, held), np.zeros(3, np.int64))
    assert [each.allocated_bytes for each in found] == [0, 5]


def test_open_ranges_are_those_begun_and_not_ended():
    marks = [
        Annotation(0, 1, "step", "START"),
        Annotation(0, 2, "forward", "START"),
        Annotation(0, 3, "forward", "END"),
        Annotation(0, 4, "backward", "START"),
        Annotation(0, 9, "step", "END"),
    ]
    assert open_ranges(marks, 2) == ("step", "forward")
    assert open_ranges(marks, 5) == ("step", "backward")
    assert open_ranges(marks, 0) == ()


def test_of_ranges_of_one_name_the_last_begun_ends_first():
    marks = [
        Annotation(0, 1, "a", "START"),
        Annotation(0, 2, "b", "START"),
        Annotation(0, 3, "a", "START"),
        Annotation(0, 4, "a", "END"),
        Annotation(0, 5, "c", "END"),
    ]
    assert open_ranges(marks, 3) == ("a", "b", "a")
    assert open_ranges(marks, 9) == ("a", "b")
