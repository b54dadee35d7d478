import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.readers import json_structure
from peakward.traces.readers.json_structure import elements

values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab"\\{}[],: \n\u20ac'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("slice_bytes", [1, 7, 1 << 20])
@given(st.lists(values, min_size=1), st.sampled_from([None, 2]), values)
def test_elements_of_an_array(slice_bytes, array, indent, after):
    text = json.dumps(array, indent=indent, ensure_ascii=False)[1:]
    whole = (text + json.dumps(after)).encode()
    with patch.object(json_structure, "_SLICE", slice_bytes):
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
