"""Reads a large trace in two processes: the text in pieces, and the second half in a process of its own.

The second process is a fresh interpreter and not a fork, because the reading process may have threads. Its
half starts where an event seems to start; the first process confirms that when it has decoded all text
before. Whenever something is wrong the second process returns nothing, and the first reads that half too and
reports the error.
"""

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from peakward.records.errors import PeakwardError
from peakward.traces.readers.gathered import Gathered, to_bytes
from peakward.traces.readers.memory_limit import free_bytes
from peakward.traces.readers.torch_gather import gather

MIN_BYTES = 64 << 20
"""The smallest file that is split, because the second process takes 0.15 s to start."""
_HEAD_START_BYTES = 20 << 20
"""Half of the bytes that the first process reads during that start."""
_EVENT_START = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name)")')
_SEARCHED_BYTES = 1 << 20


class SecondHalf:
    """A process that reads a file from `start`, where an event seems to start."""

    def __init__(self, path: Path, start: int) -> None:
        self.start = start
        paths = [str(Path(each).absolute()) for each in sys.path if each]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(path.absolute()), str(start)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )

    def sent(self) -> bytes | None:
        """The gathered bytes for `gathered.take_in`; None if it failed. This waits for the process."""
        sent, _ = self._process.communicate()
        return sent if self._process.returncode == 0 else None

    def end(self) -> None:
        """Stop the process."""
        self._process.kill()
        with self._process:
            pass


@contextmanager
def second_half(path: Path, file: IO[bytes]) -> Iterator[SecondHalf | None]:
    """Start the second process where it pays and the machine has a free core. The file's position stays."""
    start = _middle(file) if _can_start() else None
    try:
        started = None if start is None else SecondHalf(path, start)
    except OSError:
        started = None
    try:
        yield started
    finally:
        if started is not None:
            started.end()


def _middle(file: IO[bytes]) -> int | None:
    position, size = file.tell(), os.fstat(file.fileno()).st_size
    middle = size // 2 + _HEAD_START_BYTES
    if size < MIN_BYTES or middle < position:
        return None
    file.seek(middle)
    start = _EVENT_START.search(file.read(_SEARCHED_BYTES))
    file.seek(position)
    return None if start is None else middle + start.end()


def _can_start() -> bool:
    return bool(sys.executable) and not hasattr(sys, "frozen") and _n_cores() > 1


def _n_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main() -> None:
    """Read from the given position on and write the gathered data to stdout."""
    path, start = sys.argv[1:]
    gathered, free = Gathered(), free_bytes()

    def check() -> None:
        # The first process may take half of the memory, and needs room for this data too.
        if free is not None and gathered.n_bytes > free // 4:
            raise PeakwardError("expected a trace that fits in memory, got a larger one")

    with Path(path).open("rb") as file:
        file.seek(int(start))
        pieces = plain(file, PIECE_BYTES)
        rest, closed = gather(gathered, pieces, b"", check)
        after = rest + b"".join(pieces)
    if not closed or gathered.halves:
        raise SystemExit(1)
    sys.stdout.buffer.write(to_bytes(gathered, after))


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


if __name__ == "__main__":
    main()
