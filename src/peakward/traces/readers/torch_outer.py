"""Reads the text before and after the array of events in a PyTorch trace.

The array can be the whole file, or a key of an object with other keys before and after it.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from peakward.records.errors import PeakwardError
from peakward.traces.readers.json_repair import repaired
from peakward.traces.readers.json_structure import elements
from peakward.traces.readers.torch_metadata import Metadata

MAX_BYTES = 64 << 20
_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_MAX_CANDIDATES = 16
"""The most candidates that are checked. The key within a string or a nested object does not count, and each
check decodes all text before it."""
_BLANK = b" \t\r\n\xef\xbb\xbf"
"""White space, and the bytes of a byte order mark."""
_WANTED = "expected a PyTorch profiler trace, a JSON object with an array called traceEvents"
_ADVICE = "give a file that torch.profiler's export_chrome_trace wrote"


class Head(NamedTuple):
    """The file up to the array of events."""

    metadata: Metadata
    in_object: bool
    rest: bytes
    """Text that was read beyond the array's opening bracket."""


def head(pieces: Iterator[bytes]) -> Head:
    """Read up to the array of events.

    Raises:
        PeakwardError: there is none.
    """
    text, n_read, wanted = b"", 0, 0
    for piece in pieces:
        n_read += len(piece)
        text = (text + piece).lstrip(_BLANK)
        if text[:1] not in (b"", b"{", b"[") or n_read > MAX_BYTES:
            break
        if text[:1] == b"[":
            return Head(Metadata(), False, text[1:])
        if len(text) < wanted:
            continue
        wanted = 2 * len(text)
        if (found := _in_object(text)) is not None:
            return found
    found = _in_object(text) if text[:1] == b"{" else None
    if found is not None:
        return found
    raise PeakwardError(f"{_WANTED}, got {_instead(text, n_read)}: {_ADVICE}")


def _in_object(text: bytes) -> Head | None:
    for key in islice(_KEY.finditer(text), _MAX_CANDIDATES):
        metadata = _object(text[: key.end()] + b"]}")
        if metadata is not None and metadata.events_text() == b"[]":
            return Head(metadata, True, text[key.end() :])
    return None


def tail(head: Head, rest: bytes, pieces: Iterator[bytes], n_events: int) -> Metadata:
    """Read the text after the array's closing bracket: `rest` and the following pieces.

    Raises:
        PeakwardError: it is cut off or no JSON.
    """
    n_read = 0
    for piece in pieces:
        n_read += len(piece)
        rest += piece
        if n_read > MAX_BYTES:
            again = ", the key traceEvents again among them" if _KEY.search(rest) else ""
            raise PeakwardError(
                f"expected a few keys after the {n_events:,} events, got more than "
                f"{MAX_BYTES >> 20} MiB{again}: this is no trace, or a damaged one"
            )
    rest = rest.strip(_BLANK)
    if rest == (b"}" if head.in_object else b""):
        return Metadata()
    metadata = _object(b"{" + rest[1:]) if head.in_object and rest[:1] == b"," else None
    if metadata is not None:
        return metadata
    if head.in_object and elements(rest).close is None:
        raise cut_off(n_events)
    raise PeakwardError(
        f"expected JSON after the {n_events:,} events, got something else: the file is damaged; "
        "record or copy it again"
    )


def cut_off(n_events: int) -> PeakwardError:
    """The error for a file that ends too early."""
    return PeakwardError(
        f"expected a whole trace, got one that is cut off after {n_events:,} events: "
        "record or copy it again"
    )


def _object(text: bytes) -> Metadata | None:
    try:
        return msgspec.json.decode(text, type=Metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.json.decode(repaired(text), type=Metadata)
    except (msgspec.DecodeError, RecursionError):
        return None


def _instead(text: bytes, n_read: int) -> str:
    if n_read == 0:
        return "an empty file"
    if text.startswith(b"SQLite format 3"):
        return "an SQLite database"
    if text[:1] not in (b"", b"{"):
        return "something that is not JSON"
    if n_read > MAX_BYTES:
        return f"none in {MAX_BYTES >> 20} MiB"
    metadata = _object(text)
    if metadata is None:
        return "JSON that is cut off or damaged"
    if metadata.events_text() is None:
        return "JSON without one"
    return "one that is not an array"
