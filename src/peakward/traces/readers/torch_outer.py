"""What stands before and after the array of events in a PyTorch trace.

The array can be all of the file, or a key of an object with others before and after it.
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
"""The key within a string or a nested object is none; to check one costs decoding all before it."""
_BLANK = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WANTED = "expected a PyTorch profiler trace, a JSON object with an array called traceEvents"
_ADVICE = "give a file that torch.profiler's export_chrome_trace wrote"


class Head(NamedTuple):
    """The file up to the array of events."""

    metadata: Metadata
    in_object: bool
    rest: bytes
    """What was read beyond the array's opening bracket."""


def head(pieces: Iterator[bytes]) -> Head:
    """Read up to the array of events.

    Raises:
        PeakwardError: there is none.
    """
    text = b""
    for piece in pieces:
        text = (text + piece).removeprefix(_BYTE_ORDER_MARK).lstrip(_BLANK) or piece[:1]
        if text[:1] == b"[":
            return Head(Metadata(), False, text[1:])
        if text[:1] not in b"{" + _BLANK:
            break
        for key in islice(_KEY.finditer(text), _MAX_CANDIDATES):
            metadata = _object(text[: key.end()] + b"]}")
            if metadata is not None and metadata.events_text() == b"[]":
                return Head(metadata, True, text[key.end() :])
        if len(text) > MAX_BYTES:
            break
    raise PeakwardError(f"{_WANTED}, got {_instead(text.strip(_BLANK))}: {_ADVICE}")


def tail(head: Head, rest: bytes, pieces: Iterator[bytes], n_events: int) -> Metadata:
    """Read what follows the array's closing bracket: `rest` and the pieces after it.

    Raises:
        PeakwardError: it is cut off or no JSON.
    """
    for piece in pieces:
        rest = rest.strip(_BLANK) + piece
        if len(rest) > MAX_BYTES:
            break
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
    """For a file that ends too early."""
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


def _instead(text: bytes) -> str:
    if not text:
        return "an empty file"
    if text.startswith(b"SQLite format 3"):
        return "an SQLite database"
    if text[:1] != b"{":
        return "something that is not JSON"
    metadata = _object(text)
    if metadata is None:
        too_long = len(text) > MAX_BYTES
        return f"none in {MAX_BYTES >> 20} MiB" if too_long else "JSON that is cut off or damaged"
    if metadata.events_text() is None:
        return "JSON without one"
    return "one that is not an array"
