"""JSON text of traces: exact times, an array's exact elements, repairs of invalid text."""

import json
from decimal import ROUND_HALF_EVEN, Decimal
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.readers import json_text
from peakward.traces.readers.json_text import (
    ABSURD,
    elements,
    nanoseconds,
    nanoseconds_of_text,
    repaired,
)


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


values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab"\\{}[],: \n\u20ac'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(
    st.sampled_from([1, 7, 1 << 20]),
    st.lists(values, min_size=1),
    st.sampled_from([None, 2]),
    values,
)
def test_elements_of_an_array(slice_bytes, array, indent, after):
    text = json.dumps(array, indent=indent, ensure_ascii=False)[1:]
    whole = (text + json.dumps(after)).encode()
    with patch.object(json_text, "_SLICE", slice_bytes):
        found = elements(whole)
    assert found.close == len(text.encode()) - 1
    starts = [0, *(comma + 1 for comma in found.commas)]
    parts = [
        whole[start:end] for start, end in zip(starts, [*found.commas, found.close], strict=True)
    ]
    assert [json.loads(part) for part in parts] == array


@given(st.lists(values, min_size=1))
def test_without_its_end(array):
    text = json.dumps(array)[1:-1].encode()
    assert elements(text).close is None
    assert len(elements(text).commas) == len(array) - 1


@given(st.binary())
def test_any_bytes(text):
    found = elements(text)
    assert all(text[comma] == ord(",") for comma in found.commas)
    assert found.close is None or text[found.close] in b"]}"


numbers_and_texts = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(numbers_and_texts, st.booleans(), st.sampled_from([None, 1]))
def test_sound_json_stays_as_it_is(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert json.loads(repaired(text.encode(errors="replace"))) == json.loads(
        text.encode(errors="replace")
    )


def test_what_is_repaired():
    text = rb'{"a": NaN, "b": [-Infinity,inf], "NaN": "\ud83d\ude00 \ud83d \q \\inf, NaN"}'
    assert json.loads(repaired(text)) == {
        "a": None,
        "b": [None, None],
        "NaN": "\U0001f600 \ufffd \\q \\inf, NaN",
    }


@given(st.binary())
def test_any_bytes_in_json_repair(text):
    repaired(text).decode()
