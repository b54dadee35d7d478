"""A text as one stream of token ids, documents end to end, and the sequences cut from it. No torch."""

import io
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from peakward.lab.data import disk_cache, text, tokenizer
from peakward.lab.data.tokenizer import Tokenizer
from peakward.records.data import TextData
from peakward.records.errors import PeakwardError

PIECE_CHARACTERS = 16_384
"""A longer document is tokenised in pieces cut at the ends of lines: on the fly, a sequence costs the
pieces that it lies in."""
FORMAT = 1
"""Of the files in the cache: another makes them anew."""


class Stream(Protocol):
    """Token ids by their place. What has it can be pickled, for loader workers."""

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
    """Ids that were made once and are mapped from a file, each process by itself."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _ids(self) -> NDArray[np.uint32]:
        found: NDArray[np.uint32] = np.load(self._path, mmap_mode="r")
        return found

    def __reduce__(self) -> tuple[type["CachedStream"], tuple[Path]]:
        return CachedStream, (self._path,)  # pickled, a mapping would become its content

    def read(self, start: int, length: int) -> NDArray[np.int64]:
        """See Stream."""
        return self._ids[start : start + length].astype(np.int64)


class LiveStream:
    """Ids that are made from the text whenever they are read; the same as cached ones."""

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
    """Of a document."""

    text: str
    is_last: bool


def prepare(data: TextData, *, vocab_size: int, seq_len: int) -> Tokens:
    """The text's tokens for a model of `vocab_size` words, in sequences of `seq_len` and one more.

    The first time they are tokenised whole and kept on disk; on the fly only the pieces' lengths are
    read from there.

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
    """Pieces of at most `PIECE_CHARACTERS`, or one line where that is longer, that join to the document."""
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
    """The files of the ids and of the pieces' ends, which are made where they are not there."""
    identity = f"{FORMAT} {digest} {of.identity}"
    ids_path = disk_cache.entry("tokens", identity, ".ids.npy")
    ends_path = disk_cache.entry("tokens", identity, ".ends.npy")
    if not (ids_path.exists() and ends_path.exists()):
        encoded = [_encode(each, of) for each in pieces]
        width = np.uint16 if of.vocab_size <= 2**16 else np.uint32
        disk_cache.write(ids_path, _as_file(np.concatenate(encoded).astype(width)))
        disk_cache.write(ends_path, _as_file(np.array(list(accumulate(map(len, encoded))))))
    return ids_path, ends_path


def _as_file(array: NDArray[np.generic]) -> memoryview:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getbuffer()
