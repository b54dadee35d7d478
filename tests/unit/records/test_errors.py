"""Looking names up."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peakward.records.errors import PeakwardError, look_up, printable, printable_json

ROWS = {"Alpha": 1, "alpine": 2, "beta": 3}


def test_a_name_gives_its_row() -> None:
    assert look_up("a row", "alpine", ROWS) == 2


def test_capitals_keep_no_name_from_being_near_but_must_match() -> None:
    with pytest.raises(PeakwardError, match=r"^expected a row, got 'ALPHA': perhaps Alpha"):
        look_up("a row", "ALPHA", ROWS)


def test_what_is_near_to_none_is_answered_with_all() -> None:
    with pytest.raises(PeakwardError, match=r"got 'xyz': there are Alpha, alpine, beta$"):
        look_up("a row", "xyz", ROWS)


def test_of_two_both_are_named() -> None:
    """'gpu' is near to 'cpu' in letters alone."""
    with pytest.raises(PeakwardError, match=r"got 'gpu': there are cpu, cuda$"):
        look_up("a row", "gpu", {"cpu": 1, "cuda": 2})


@given(st.text(alphabet=st.characters()))
@example("\x1b]0;t\x07\x9b2J\r\n\u202e\u2066\u2028\u200b\xa0\x7f")
def test_text_is_printable_and_stays_where_it_was(text):
    assert printable(text).isprintable()
    assert printable(text) == text or not text.isprintable()
    assert printable(printable(text)) == printable(text)


texts = st.text(
    alphabet=st.characters() | st.sampled_from('\\"/\n\x1b\u202e\U0001f600'), max_size=8
)
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


def shown(value):
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [shown(each) for each in value]
    return (
        {printable(key): shown(each) for key, each in value.items()}
        if isinstance(value, dict)
        else value
    )


@given(value=values, ascii=st.booleans(), indent=st.sampled_from([None, 2]))
@example({"\ud800\\": "\\u001b\x1b\\"}, True, None)
def test_json_holds_the_same_with_every_text_printable(value, ascii, indent):
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    assert json.loads(printable_json(text)) == shown(value)


@pytest.mark.parametrize("text", ["", "{", '"\\', '"\\u', '"\\ud8', "\x1b", '"\\x1b"', "\ufeff{}"])
def test_what_is_no_json_does_not_become_any(text):
    with pytest.raises(ValueError):
        json.loads(printable_json(text))


def test_an_error_says_one_printable_line():
    said = str(PeakwardError("expected a name, got \x1b[2J\nroot# \u202e"))
    assert said == r"expected a name, got \x1b[2J\nroot# \u202e"
