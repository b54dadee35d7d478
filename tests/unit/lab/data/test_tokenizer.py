"""Bytes as tokens, and the choice of a tokenizer that fits a model."""

import pytest

from peakward.lab.data import tokenizer
from peakward.lab.data.text import Text
from peakward.records.case import Source
from peakward.records.errors import PeakwardError

TEXT = Text(("abc abc abd",), "digest", 11)


def test_bytes_are_utf_8():
    ids = tokenizer.ByteTokenizer().encode("aé")
    assert ids.tolist() == [97, 0xC3, 0xA9]
    assert tokenizer.ByteTokenizer.separator not in ids
    assert bytes(ids.astype("uint8")).decode() == "aé"


def test_a_vocabulary_larger_than_the_models_is_refused():
    with pytest.raises(PeakwardError) as caught:
        tokenizer.load(Source("bytes"), TEXT, 256)
    assert str(caught.value) == (
        "expected a tokenizer of at most 256 tokens, the model's vocabulary, got bytes with 257: "
        "use a model with a larger vocabulary"
    )
    assert tokenizer.load(Source("bytes"), TEXT, 257).vocab_size == 257


def test_a_file_is_named_by_what_it_holds(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    named = tokenizer.source(str(tmp_path / "a.json"))
    assert named.digest == tokenizer.file_digest(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("{ }")
    with pytest.raises(PeakwardError, match="as it was when the case was made"):
        tokenizer.load(named, TEXT, 1000)


def test_names_have_no_digest_and_what_is_neither_is_refused(tmp_path):
    assert [tokenizer.source(name) for name in tokenizer.NAMES] == list(
        map(Source, tokenizer.NAMES)
    )
    with pytest.raises(PeakwardError, match=r"expected bytes, bpe, gpt2 or a tokenizer.json"):
        tokenizer.source(str(tmp_path / "none.json"))
