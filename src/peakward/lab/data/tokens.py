"""A text as one stream of token ids, with its documents end to end, cut into sequences. Imports no
torch."""

import io
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from peakward.lab.data import text, tokenizer
from peakward.lab.data.tokenizer import Tokenizer
from peakward.records.case import TextData
from peakward.records.errors import PeakwardError

PIECE_CHARACTERS = 16_384
"""A longer document is tokenised in pieces that are cut at the ends of lines. On the fly, reading a
sequence costs the tokenising of the pieces that it lies in."""
FORMAT = 1
"""The version of the cache's files; files of another version are made again."""


class Stream(Protocol):
    """Token ids by their place. A stream for loader workers can be pickled."""

    def read(self, start: int, length: int) -> NDArray[np.int64]:
        """The ids from `start` on, (length,)."""


class Tokens(NamedTuple):
    """A text's stream, and what is known of it."""

    stream: Stream
    n_tokens: int
    vocab_size: int
    text_bytes: int
    text_digest: str


class CachedStream:
    """Ids that are made once, kept in a file, and mapped from it by each process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _ids(self) -> NDArray[np.uint32]:
        found: NDArray[np.uint32] = np.load(self._path, mmap_mode="r")
        return found

    def __reduce__(self) -> tuple[type["CachedStream"], tuple[Path]]:
        return CachedStream, (self._path,)  # A pickled mapping would become its content.

    def read(self, start: int, length: int) -> NDArray[np.int64]:
        """See Stream."""
        return self._ids[start : start + length].astype(np.int64)


class LiveStream:
    """Ids that are made from the text at every reading; they equal the cached ones."""

    def __init__(self, pieces: tuple["Piece", ...], ends: tuple[int, ...], of: Tokenizer) -> None:
        self._pieces, self._ends, self._tokenizer = pieces, ends, of

    def read(self, start: int, length: int) -> NDArray[np.int64]:
        """See Stream."""
        first = bisect_right(self._ends, start)
        begins = self._ends[first - 1] if first else 0
        ids: list[NDArray[np.int64]] = []
        place = first
        while place < len(self._pieces) and (
            place == first or self._ends[place - 1] < start + length
        ):
            ids.append(_encode(self._pieces[place], self._tokenizer))
            place += 1
        return np.concatenate(ids)[start - begins : start - begins + length]


class Piece(NamedTuple):
    """A piece of a document."""

    text: str
    is_last: bool


def prepare(data: TextData, *, vocab_size: int, seq_len: int) -> Tokens:
    """The text's tokens for a model of `vocab_size` words, read in sequences of `seq_len` + 1.

    The first call tokenises the whole text and keeps the ids on disk. On the fly, only the lengths of
    the pieces are kept.

    Raises:
        PeakwardError: as `text.read` and `tokenizer.load`, or where the text is shorter than one
        sequence.
    """
    found = text.read(data.text)
    chosen = tokenizer.load(data.tokenizer, found, vocab_size)
    pieces = tuple(each for document in found.documents for each in cut(document))
    ids_path, ends_path = _made(found.digest, pieces, chosen)
    ends = np.load(ends_path)
    n_tokens = int(ends[-1])
    if n_tokens < seq_len + 1:
        raise PeakwardError(
            f"expected text of at least {seq_len + 1:,} tokens, one sequence and a target, got "
            f"{n_tokens:,} in {data.text.name} by {data.tokenizer.name}: use more text or a shorter "
            "sequence"
        )
    stream: Stream = CachedStream(ids_path)
    if data.tokenise == "on-the-fly":
        stream = LiveStream(pieces, tuple(ends.tolist()), chosen)
    return Tokens(stream, n_tokens, chosen.vocab_size, found.n_bytes, found.digest)


def cut(document: str) -> list[Piece]:
    """Pieces that together are the document, each of at most `PIECE_CHARACTERS` or one longer line."""
    parts: list[list[str]] = [[]]
    length = 0
    for line in document.splitlines(keepends=True):
        if parts[-1] and length + len(line) > PIECE_CHARACTERS:
            parts.append([])
            length = 0
        parts[-1].append(line)
        length += len(line)
    texts = ["".join(part) for part in parts]
    return [Piece(each, is_last=i == len(texts) - 1) for i, each in enumerate(texts)]


def _encode(piece: Piece, of: Tokenizer) -> NDArray[np.int64]:
    ids = of.encode(piece.text)
    return np.append(ids, of.separator) if piece.is_last else ids


def _made(digest: str, pieces: tuple[Piece, ...], of: Tokenizer) -> tuple[Path, Path]:
    """The files of the ids and of the pieces' ends. They are made if they do not exist."""
    identity = f"{FORMAT} {digest} {of.identity}"
    ids_path = text.entry("tokens", identity, ".ids.npy")
    ends_path = text.entry("tokens", identity, ".ends.npy")
    if not (ids_path.exists() and ends_path.exists()):
        encoded = [_encode(each, of) for each in pieces]
        width = np.uint16 if of.vocab_size <= 2**16 else np.uint32
        text.write(ids_path, _as_file(np.concatenate(encoded).astype(width)))
        text.write(ends_path, _as_file(np.array(list(accumulate(map(len, encoded))))))
    return ids_path, ends_path


def _as_file(array: NDArray[np.generic]) -> memoryview:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getbuffer()
