import json

from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.readers.json_repair import repaired

values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
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
def test_any_bytes(text):
    repaired(text).decode()
