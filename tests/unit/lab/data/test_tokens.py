"""A text as one stream, made once or as it is read."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.lab.data import text, tokenizer, tokens
from peakward.records.case import TextData
from peakward.records.errors import PeakwardError


def prepared(folder, tokenise="cached", name="bytes", seq_len=16):
    data = TextData(
        text=text.source(str(folder)), tokenizer=tokenizer.source(name), tokenise=tokenise
    )
    return tokens.prepare(data, vocab_size=400, seq_len=seq_len)


def test_the_stream_is_documents_end_to_end(folder):
    found = prepared(folder)
    documents = text.read(text.source(str(folder))).documents
    wanted = [each for document in documents for each in (*document.encode(), 256)]
    assert found.stream.read(0, found.n_tokens).tolist() == wanted
    assert found.n_tokens == len(wanted)
    assert found.stream.read(3, 5).dtype == np.int64


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_made_as_it_is_read_it_is_the_same(folder, name):
    if name == "bpe":
        pytest.importorskip("tokenizers")
    cached, live = (prepared(folder, each, name) for each in ("cached", "on-the-fly"))
    assert cached.n_tokens == live.n_tokens
    ends = live.stream._ends
    assert len(ends) > 4, "the long document has several pieces"
    edges = [0, *ends[:-1]]
    places = [max(0, edge + shift) for edge in edges for shift in (-17, -16, -1, 0, 1)]
    for start in {min(place, cached.n_tokens - 17) for place in places}:
        assert live.stream.read(start, 17).tolist() == cached.stream.read(start, 17).tolist()
    whole = cached.n_tokens
    assert live.stream.read(0, whole).tolist() == cached.stream.read(0, whole).tolist()


def test_it_is_made_once(folder, cache):
    prepared(folder)
    stamps = {each: each.stat().st_mtime_ns for each in (cache / "tokens").iterdir()}
    prepared(folder)
    assert stamps == {each: each.stat().st_mtime_ns for each in (cache / "tokens").iterdir()}
    (folder / "a.txt").write_text("changed")
    prepared(folder)
    assert len(list((cache / "tokens").iterdir())) == 2 * len(stamps)


def test_it_is_mapped_and_pickles_as_a_path(folder):
    stream = prepared(folder).stream
    assert isinstance(stream._ids, np.memmap)
    assert stream._ids.dtype == np.uint16
    sent = pickle.dumps(stream)
    assert len(sent) < 500
    assert pickle.loads(sent).read(5, 7).tolist() == stream.read(5, 7).tolist()


def test_text_shorter_than_a_sequence_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("sixteen letters.")
    assert prepared(tmp_path / "a.txt").n_tokens == 17
    with pytest.raises(PeakwardError, match=r"at least 18 tokens.*got 17 in .*a.txt by bytes"):
        prepared(tmp_path / "a.txt", seq_len=17)


@given(st.text(st.sampled_from("ab\n\r\x0c é"), min_size=1, max_size=200))
def test_pieces_join_to_the_document(document):
    kept = tokens.PIECE_CHARACTERS
    tokens.PIECE_CHARACTERS = 20
    try:
        pieces = tokens.cut(document)
    finally:
        tokens.PIECE_CHARACTERS = kept
    assert "".join(each.text for each in pieces) == document
    assert [each.is_last for each in pieces] == [False] * (len(pieces) - 1) + [True]
    for each in pieces:
        assert len(each.text) <= 20 or len(each.text.splitlines()) == 1
