"""Every record survives the codec, and nothing that is not one passes it."""

import functools
import math
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from peakward.records.calibration import Calibration
from peakward.records.case import Case, MicroCase, ModelCase, OperatorCase, StepCase
from peakward.records.case_key import case_key
from peakward.records.codec import SCHEMA_VERSION, fields, from_json, to_json
from peakward.records.device import Device
from peakward.records.errors import PeakwardError, printable
from peakward.records.lever import Lever, Trial
from peakward.records.measurement import Environment, Measurement, Protocol, Run
from peakward.records.prediction import Prediction
from peakward.records.study import Study

RECORDS = [
    Calibration,
    Device,
    Environment,
    Lever,
    Measurement,
    MicroCase,
    ModelCase,
    OperatorCase,
    Prediction,
    Protocol,
    StepCase,
    Study,
    Trial,
]

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8).map(printable),
    type(None): st.none(),
}


@functools.cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type, as the record declares it."""
    if kind in LEAVES:
        return LEAVES[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*[values_of(argument) for argument in arguments])
    if origin is dict:
        return st.dictionaries(*[values_of(argument) for argument in arguments], max_size=2)
    hints = get_type_hints(kind)
    fields = {name: values_of(hints[name]) for name in kind.__struct_fields__}
    return st.builds(kind, **fields)


@pytest.mark.parametrize("record_type", RECORDS)
@settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_a_record_survives_the_codec(
    record_type: type[msgspec.Struct], data: st.DataObject
) -> None:
    record = data.draw(values_of(record_type))
    assert from_json(to_json(record), record_type) == record


@settings(max_examples=200)
@given(values_of(Case), values_of(Case))
def test_equal_cases_have_equal_keys_and_others_do_not(one: Case, other: Case) -> None:
    again = from_json(to_json(one), type(one))
    assert case_key(again) == case_key(one)
    assert hash(again) == hash(one)
    assert (case_key(one) == case_key(other)) == (one == other)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_gives_one_clear_line(data: bytes) -> None:
    with pytest.raises(PeakwardError, match=r"^expected a Run record, got [^\n]+$") as caught:
        from_json(data, Run)
    assert caught.value.exit_code == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(json_values)
@example({"\n": {}})
def test_json_that_is_not_a_record_gives_one_clear_line(value: object) -> None:
    data = msgspec.json.encode({"schema_version": SCHEMA_VERSION, "record": value})
    with pytest.raises(PeakwardError, match=r"^expected a Run record, got [^\n]+$"):
        from_json(data, Run)


@given(st.data())
def test_a_record_cut_short_gives_one_clear_line(data: st.DataObject) -> None:
    whole = to_json(Run(warmup_s=(1.0,), steps_s=(0.5, 0.25)))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(PeakwardError, match=r"^expected a Run record, got [^\n]+$"):
        from_json(whole[:cut], Run)


@pytest.mark.parametrize("depth", [100, 100_000])
def test_deep_nesting_gives_one_clear_line(depth: int) -> None:
    with pytest.raises(PeakwardError, match=r"^expected a Run record, got [^\n]+$"):
        from_json(b'{"schema_version": 1, "record": ' + b"[" * depth, Run)


@pytest.mark.parametrize("newer", [SCHEMA_VERSION + 1, 10**6])
def test_a_newer_schema_is_refused_before_its_content_is_read(newer: int) -> None:
    data = msgspec.json.encode({"schema_version": newer, "record": {"unheard": "of"}})
    with pytest.raises(PeakwardError, match=f"got {newer}: .*newer Peakward; upgrade") as caught:
        from_json(data, Run)
    assert "\n" not in str(caught.value)


def test_another_kind_of_record_is_refused() -> None:
    with pytest.raises(PeakwardError, match=r"expected a Study record, got .*warmup_s"):
        from_json(to_json(Run(warmup_s=(), steps_s=(1.0,))), Study)


def test_an_unknown_field_is_refused() -> None:
    data = b'{"schema_version": 1, "record": {"warmup_s": [], "steps_s": [], "more": 1}}'
    with pytest.raises(PeakwardError, match="unknown field `more`"):
        from_json(data, Run)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_time_that_is_no_number_does_not_come_back_as_one(value: float) -> None:
    with pytest.raises(PeakwardError, match="expected a Run record, got Expected `float`"):
        from_json(to_json(Run(warmup_s=(), steps_s=(value,))), Run)


def test_a_key_that_is_no_text_gives_one_clear_line() -> None:
    data = b'{"schema_version":1,"record":{"\xff":1}}'
    assert fields(data) == frozenset()
    with pytest.raises(PeakwardError, match=r"^expected a Run record, got [^\n]+$"):
        from_json(data, Run)


def test_a_file_that_is_no_text_is_told_what_to_name_instead():
    with pytest.raises(PeakwardError) as caught:
        from_json(b"PK\x03\x04\x80", Study)
    assert str(caught.value) == (
        "expected a Study record, got bytes that are no text: name a file that .save or --json wrote"
    )
