"""Tokenizers: plain bytes, which need nothing, and byte-pair encodings of an extra. Imports no torch."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peakward.lab.data.text import Text
from peakward.records.case import Source
from peakward.records.errors import PeakwardError

NAMES = ("bytes", "bpe", "gpt2")


class Tokenizer(Protocol):
    """Turns text into token ids. A tokenizer for loader workers can be pickled."""

    identity: str
    """A text that is equal for tokenizers that give equal ids."""
    vocab_size: int
    """The number of ids; all ids are below it."""
    separator: int
    """The id that stands after each document."""

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
    from peakward.lab.data import byte_pairs

    if wanted.name == "bpe":
        return byte_pairs.learned(text, vocab_size)
    if wanted.name == "gpt2":
        return byte_pairs.gpt2()
    path = Path(wanted.name)
    digest = file_digest(path)
    if wanted.digest not in (None, digest):
        raise PeakwardError(
            f"expected {path} as it was when the case was made, got another: make the case again"
        )
    return byte_pairs.of_file(path, digest)
