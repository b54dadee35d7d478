"""The frame of line plots and rooflines: scales from values to pixels, grid, ticks, and room for labels."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.report.charts import axes
from peakward.report.charts.axes import MOST_LINES, Frame, LabelRoom
from peakward.report.charts.canvas import LINE

VALUES = st.lists(st.floats(min_value=1e-9, max_value=1e15), min_size=1, max_size=5)
UNITS = st.sampled_from(["s", "bytes", "flops_per_s", "ratio", "count"])


@pytest.mark.parametrize("make", [axes.linear, axes.from_zero, axes.spanning, axes.log])
@given(values=VALUES, unit=UNITS, most=st.integers(2, 9))
def test_values_and_ticks_lie_inside_the_axis(make, values, unit, most):
    axis = make(values, 10.0, 200.0, unit=unit, most_ticks=most)
    for value in (*values, *axis.ticks()):
        assert 10.0 - 1e-6 <= axis.at(value) <= 200.0 + 1e-6
    assert list(axis.ticks()) == sorted(set(axis.ticks()))
    assert 1 <= len(axis.ticks()) <= most + 2


def test_times_between_two_round_ones_have_ticks():
    """Steps of 3.6 to 4.4 ms: no 1, 2 or 5 times a power of ten lies among them."""
    ticks = axes.log([3.65e-3, 4.4e-3], 0, 100, unit="s", most_ticks=5).ticks()
    assert [axes.tick_label(tick, "s") for tick in ticks] == ["3.8 ms", "4 ms", "4.2 ms", "4.4 ms"]


@pytest.mark.parametrize("make", [axes.linear, axes.log])
def test_an_axis_may_run_upwards(make):
    axis = make([1.0, 10.0], 200.0, 10.0, unit="s", most_ticks=5)
    assert axis.at(1.0) > axis.at(10.0)


def test_bars_begin_at_zero_and_end_at_the_largest():
    axis = axes.from_zero([0.3, 1.004], 0, 100, unit="s", most_ticks=5)
    assert (axis.at(0.0), axis.at(1.004)) == (0.0, 100.0)
    assert axis.ticks() == pytest.approx((0, 0.5, 1.0)) or axis.ticks() == pytest.approx(
        (0, 0.2, 0.4, 0.6, 0.8, 1.0)
    )


def test_ticks_of_bytes_are_round_in_their_prefix():
    gib = 2.0**30
    axis = axes.linear([0, 58.9 * gib], 0, 100, unit="bytes", most_ticks=6)
    assert [axes.tick_label(tick, "bytes") for tick in axis.ticks()][:3] == [
        "0 B",
        "10 GiB",
        "20 GiB",
    ]
    powers = axes.log([gib, 60 * gib], 0, 100, unit="bytes", most_ticks=6).ticks()
    assert all(math.log2(power).is_integer() for power in powers)


def test_logarithmic_ticks_thin_out():
    few = axes.log([1, 1e12], 0, 100, unit="count", most_ticks=5).ticks()
    assert len(few) <= 5
    assert all(math.log10(tick).is_integer() for tick in few)
    assert 20.0 in axes.log([10, 100], 0, 100, unit="count", most_ticks=6).ticks()


@pytest.mark.parametrize(
    ("value", "unit", "label"),
    [
        (0.5, "s", "500 ms"),
        (1.0, "s", "1 s"),
        (1.2, "s", "1.2 s"),
        (2e13, "flops_per_s", "20 TFLOP/s"),
        (5000.0, "tokens_per_s", "5k tok/s"),
        (0.5, "share", "50%"),
        (2.0, "ratio", "2×"),
        (1000.0, "count", "1,000"),
        (100.0, "count", "100"),
    ],
)
def test_tick_labels_drop_zeros_that_say_nothing(value, unit, label):
    assert axes.tick_label(value, unit) == label


FRAME = Frame(left=0, top=0, right=400, bottom=300)


def test_a_label_stays_where_nothing_is():
    room = LabelRoom(FRAME)
    assert room.take(0, 50, 100) == 100
    assert room.take(60, 90, 100) == 100
    assert room.take(0, 50, 100 + LINE) == 100 + LINE


def test_a_label_moves_to_the_nearest_free_line_below_before_above():
    room = LabelRoom(FRAME)
    found = [room.take(0, 50, 100) for _ in range(4)]
    assert found == [100, 100 + LINE, 100 - LINE, 100 + 2 * LINE]


def test_a_label_moves_away_from_room_that_was_claimed():
    room = LabelRoom(FRAME)
    room.claim(0, 50, 100)
    assert room.take(0, 50, 100) == 100 + LINE


def test_a_label_stays_inside_the_frame():
    room = LabelRoom(FRAME)
    assert room.take(0, 50, 295) == 295
    assert room.take(0, 50, 295) == 295 - LINE


def test_where_all_is_taken_a_label_lies_on_another():
    room = LabelRoom(FRAME)
    found = [room.take(0, 50, 150) for _ in range(2 * MOST_LINES + 2)]
    assert len(set(found[:-1])) == 2 * MOST_LINES + 1
    assert found[-1] == 150
