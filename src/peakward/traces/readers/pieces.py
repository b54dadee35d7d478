"""The text of a file in pieces. Gzip is unpacked while it is read."""

import zlib
from collections.abc import Iterator
from typing import IO

PIECE_BYTES = 1 << 19
"""The size of a piece: decoding is as fast as with 4 MiB, and a trace of 1 GB takes 30 MB less."""

_GZIP_MAGIC = b"\x1f\x8b"
_COMPRESSED_BYTES = 1 << 18


class Truncated(Exception):
    """The file ends in the middle of its compressed text."""


def is_gzip(file: IO[bytes]) -> bool:
    """Whether the first bytes are gzip's, whatever the file is called."""
    start = file.read(len(_GZIP_MAGIC))
    file.seek(0)
    return start == _GZIP_MAGIC


def plain(file: IO[bytes], n_bytes: int, stop: int | None = None) -> Iterator[bytes]:
    """Pieces of `n_bytes` from the file's position to `stop`, or to its end."""
    while True:
        piece = file.read(n_bytes if stop is None else min(n_bytes, stop - file.tell()))
        if not piece:
            return
        yield piece


def gunzipped(file: IO[bytes], n_bytes: int) -> Iterator[bytes]:
    """Pieces of `n_bytes` from the file's gzip members, one after the other.

    Raises:
        Truncated: the file ends within a member.
        zlib.error: it is damaged.
    """
    held: list[bytes] = []
    n_held = 0
    member, compressed = zlib.decompressobj(wbits=31), b""
    while True:
        if member.eof:
            compressed = _after_padding(member.unused_data, file)
            if not compressed:
                break
            member = zlib.decompressobj(wbits=31)
        elif not compressed and not (compressed := file.read(_COMPRESSED_BYTES)):
            raise Truncated
        # The limit on the output keeps a zip bomb's text from being held at once.
        text = member.decompress(compressed, n_bytes - n_held)
        compressed = member.unconsumed_tail
        held.append(text)
        n_held += len(text)
        if n_held == n_bytes:
            yield b"".join(held)
            held, n_held = [], 0
    if n_held:
        yield b"".join(held)


def _after_padding(rest: bytes, file: IO[bytes]) -> bytes:
    """The next member's start. Gzip allows zeros between and after members."""
    while not (rest := rest.lstrip(b"\0")):
        rest = file.read(_COMPRESSED_BYTES)
        if not rest:
            break
    return rest
