"""Numbers for readers: three significant figures, with a prefix where the unit takes one."""

import math
import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.records.measurement import Interval, Status, Verdict
from peakward.report.format import (
    LEAST_SHARE,
    SCALES,
    format_cell,
    format_duration,
    format_estimate,
    format_interval,
    format_spread,
    is_numeric,
    tone,
)

UNITS = [unit for unit in SCALES if unit != "text"]
SIZES = st.floats(min_value=1e-6, max_value=1e14)
VALUES = st.tuples(SIZES, st.sampled_from(UNITS)).filter(
    lambda each: each[1] != "share" or each[0] >= LEAST_SHARE
)
"""What is printed to three figures."""


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.4127, "s", "413 ms"),
        (0.0000123, "s", "12.3 µs"),
        (0.99951, "s", "1.00 s"),
        (0.99949, "s", "999 ms"),
        (25.7 * 2**30, "bytes", "25.7 GiB"),
        (0.6 * 2**30, "bytes", "614 MiB"),
        (12 * 2**20, "bytes", "12.0 MiB"),
        (431e12, "flops_per_s", "431 TFLOP/s"),
        (38.4e9, "flops_per_s", "38.4 GFLOP/s"),
        (4.264e12, "bytes_per_s", "4,260 GB/s"),
        (17.7e9, "bytes_per_s", "17.7 GB/s"),
        (20_987, "tokens_per_s", "21.0k tok/s"),
        (1.234e6, "tokens_per_s", "1.23M tok/s"),
        (1.8345, "ratio", "1.83×"),
        (0.4712, "share", "47.1%"),
        (1.0, "share", "100%"),
        (-0.123, "share", "−12.3%"),
        (1.19e-7, "share", "<0.1%"),
        (-2e-7, "share", "<0.1%"),
        (0.0, "share", "0%"),
        (3_407_137_280, "count", "3,407,137,280"),
        (306.4, "count", "306"),
        (3.2e-7, "count", "3.20e-7"),
        (7.22e10, "large_count", "72.2 B"),
        (999.6e9, "large_count", "1.00 T"),
        (1.4e15, "large_count", "1,400 T"),
        (12.0, "large_count", "12.0"),
        (5.76e23, "flops", "576 ZFLOP"),
        (1e25, "flops", "10.0 YFLOP"),
        (3e18, "flops", "3.00 EFLOP"),
        (642.0, "j", "642 J"),
        (41.7e12, "flops", "41.7 TFLOP"),
        (0, "bytes", "0 B"),
        (0.0, "s", "0 s"),
        (None, "s", "–"),
        ("oom", "s", "oom"),
        (math.inf, "ratio", "inf×"),
    ],
)
def test_cells(value, unit, text):
    assert format_cell(value, unit) == text


@given(VALUES)
def test_a_cell_reads_back_to_three_figures(given_):
    value, unit = given_
    text = format_cell(value, unit)
    number = re.match(r"[\d.,]+(e-?\d+)?", text)
    suffix = text[number.end() :]
    size = next(prefix.size for prefix in SCALES[unit] if prefix.suffix == suffix)
    assert float(number[0].replace(",", "")) * size == pytest.approx(value, rel=0.00501)


@given(VALUES, SIZES)
def test_equal_texts_only_for_near_values(given_, b):
    a, unit = given_
    if format_cell(a, unit) == format_cell(b, unit):
        assert a == pytest.approx(b, rel=0.011)


@given(VALUES)
def test_a_sign_is_all_that_a_negative_value_adds(given_):
    value, unit = given_
    assert format_cell(-value, unit) == "−" + format_cell(value, unit)


@pytest.mark.parametrize(
    ("low", "high", "unit", "text"),
    [
        (0.308, 0.313, "s", "308–313 ms"),
        (1.002, 1.006, "s", "1.002–1.006 s"),
        (0.994, 1.009, "ratio", "0.994–1.009×"),
        (0.9, 1.2, "s", "0.900–1.20 s"),
        (2.0, 2.0, "s", "2.00–2.00 s"),
        (0.0565, 17.72, "ratio", "0.0565–17.7×"),
        (9.9996, 10.4, "ratio", "10.0–10.4×"),
        (-0.01, 0.02, "share", "−1.00 to 2.00%"),
        (0.0, 0.0, "s", "0–0 s"),
    ],
)
def test_intervals(low, high, unit, text):
    assert format_interval(Interval(estimate=low, low=low, high=high), unit) == text


@given(SIZES, st.floats(min_value=1.0001, max_value=1e3), st.sampled_from(UNITS))
def test_the_ends_of_an_interval_can_be_told_apart(low, ratio, unit):
    text = format_interval(Interval(estimate=low, low=low, high=low * ratio), unit)
    left, right = re.match(r"([\d.,]+)–([\d.,]+)", text).groups()
    assert float(left.replace(",", "")) <= float(right.replace(",", ""))
    if ratio > 1.001:
        assert left != right


@given(
    SIZES,
    st.floats(min_value=1.0, max_value=1e3),
    st.floats(min_value=0, max_value=1),
    st.sampled_from(UNITS),
)
def test_a_printed_estimate_lies_in_its_printed_interval(low, ratio, place, unit):
    high = low * ratio
    estimate = min(high, low + place * (high - low))
    interval = Interval(estimate=estimate, low=low, high=high)
    text = f"{format_interval(interval, unit)} {format_estimate(interval, unit)}"
    first, last, between = (float(each.replace(",", "")) for each in re.findall(r"\d[\d.,]*", text))
    assert first <= between <= last


def test_an_estimate_and_its_interval_in_one_cell():
    interval = Interval(estimate=1.017362, low=1.01731, high=1.01741)
    assert format_spread(interval, "s") == "1.01736 s (1.01731–1.01741 s)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "200 ms"),
        (59.4, "59.4 s"),
        (59.7, "1 min 00 s"),
        (102, "1 min 42 s"),
        (102.6, "1 min 43 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_every_unit_but_those_of_words_is_numeric():
    assert [unit for unit in SCALES if not is_numeric(unit)] == ["text", "name"]


def test_every_status_and_verdict_has_a_tone():
    words = [
        *get_args(Status),
        *get_args(Verdict),
        "gain confirmed",
        "makes it run",
        "rejected",
        "inconclusive",
    ]
    assert [word for word in words if tone(word) is None] == []


def test_nothing_else_has():
    assert tone("sdpa") is tone(1.0) is tone(None) is None
