from decimal import ROUND_HALF_EVEN, Decimal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.readers.json_times import ABSURD, nanoseconds, nanoseconds_of_text


def text_of(ns: int) -> str:
    sign, ns = "-" * (ns < 0), abs(ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03}"


@given(st.lists(st.integers(-(2**43) * 999, 2**43 * 999), min_size=1))
def test_decimals_that_float64_holds_are_exact(times_ns):
    assert nanoseconds([float(text_of(each)) for each in times_ns]).tolist() == times_ns


@given(st.lists(st.integers(-(2**52), 2**52), min_size=1))
def test_integers_are_exact(times_us):
    assert nanoseconds(times_us).tolist() == [1000 * each for each in times_us]


@pytest.mark.parametrize(
    "values", [[1712195495505582.988], [2.0**43], [1e300], [1, 2**62], [2**70], [0.5, 10**400]]
)
def test_what_may_have_lost_digits_is_refused(values):
    assert nanoseconds(values) is None


def test_more_than_three_decimals_are_noticed():
    assert nanoseconds([1.0, 2.0004]) is None


def of_text(*texts):
    return nanoseconds_of_text([msgspec.Raw(each.encode()) for each in texts]).tolist()


@given(st.integers(-(2**62), 2**62))
def test_text_is_exact(time_ns):
    assert of_text(text_of(time_ns)) == [time_ns]


@given(st.decimals(-(10**15), 10**15, places=7))
def test_more_decimals_go_to_the_nearest(time_us):
    nearest = int((time_us * 1000).quantize(Decimal(1), ROUND_HALF_EVEN))
    assert of_text(str(time_us)) == [nearest]


def test_other_ways_to_write_a_number():
    assert of_text("1712195495505582.988", "5", "-0.5", "1e3", "1.5E-1", "0.0004") == [
        1_712_195_495_505_582_988,
        5_000,
        -500,
        1_000_000,
        150,
        0,
    ]


def test_what_is_no_time():
    texts = [
        "null",
        '"12"',
        "true",
        "[1]",
        "1e999999999",
        "9" * 9999,
        "-" + "9" * 16 + ".999",
        "NaN",
    ]
    assert of_text(*texts) == [ABSURD] * len(texts)
    assert np.iinfo(np.int64).min == ABSURD
