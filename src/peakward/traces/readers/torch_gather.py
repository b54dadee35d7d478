"""Reads the array of events of a PyTorch trace, piece by piece, into the growing columns.

A piece is cut where an event seems to end and the next to begin, and decoded at once. A wrong cut leaves a
string or a bracket open, so the piece does not decode. Then, and at the array's end or at a malformed event,
the events are separated byte by byte.
"""

import re
from collections.abc import Callable, Iterator

import msgspec

from peakward.records.errors import PeakwardError
from peakward.traces.readers.gathered import Gathered
from peakward.traces.readers.json_text import elements, repaired
from peakward.traces.readers.torch_columns import InexactTimes, add
from peakward.traces.readers.torch_events import (
    EVENT_WITH_TEXT,
    EVENTS,
    EVENTS_WITH_TEXT,
    TEXTS,
    Event,
)

MAX_EVENT_BYTES = 64 << 20
_BETWEEN = re.compile(rb'\}(\s*,\s*)(?=\{\s*"\w)')
"""No string contains this, because a quote ends the string and no letter follows there. Nested objects may
contain it."""

_WINDOW_BYTES = 1 << 14
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def gather(
    gathered: Gathered, pieces: Iterator[bytes], rest: bytes, check: Callable[[], None]
) -> tuple[bytes, bool]:
    """Add events from `rest`, the text from an event's start on, and from the following pieces.

    `check` is called after each piece. Returns the text after the array's closing bracket and True, or, if
    the pieces end before it, the remaining text and False.

    Raises:
        PeakwardError: it is not JSON, or one event is larger than MAX_EVENT_BYTES.
    """
    held, wanted = [rest], 0
    for piece in pieces:
        held.append(piece)
        if sum(map(len, held)) < wanted:
            continue
        text = b"".join(held)
        end, start = _last_cut(text)
        if end and _take(gathered, text[:end]):
            rest = text[start:]
        else:
            rest, closed = _take_exactly(gathered, text)
            if closed:
                return rest, True
        # The event is larger than the text so far: look again when there is twice as much.
        held, wanted = [rest], 2 * len(rest) if rest is text else 0
        check()
    return _take_exactly(gathered, b"".join(held))


def _last_cut(text: bytes) -> tuple[int, int]:
    """The end of the last event that is followed by another, and that other's start, as guessed; 0, 0 where
    there is none."""
    window = _WINDOW_BYTES
    while True:
        first = max(0, len(text) - window)
        found = list(_BETWEEN.finditer(text, first))
        if found:
            return found[-1].start() + 1, found[-1].end()
        if first == 0:
            return 0, 0
        window *= 8


def _take(gathered: Gathered, text: bytes) -> bool:
    """Add all of these events; False where the text does not consist of whole events."""
    array = b"[" + text + b"]"
    try:
        if not gathered.times_as_text:
            try:
                add(gathered, EVENTS.decode(array))
            except InexactTimes:
                # Where one piece of a file has times that float64 does not hold, all have.
                gathered.times_as_text = True
        if gathered.times_as_text:
            add(gathered, EVENTS_WITH_TEXT.decode(array))
    except _UNDECODABLE:
        try:
            events = TEXTS.decode(array)
        except _UNDECODABLE:
            return False
        _take_each(gathered, map(bytes, events))
    return True


def _take_exactly(gathered: Gathered, text: bytes) -> tuple[bytes, bool]:
    """Add the whole events of the text; returns the rest, and whether the array ended."""
    found = elements(text)
    if found.close is None and not found.commas:
        if len(text) > MAX_EVENT_BYTES:
            raise PeakwardError(
                f"expected events of a few KB, got one of more than {MAX_EVENT_BYTES >> 20} MiB "
                f"after {gathered.n_events:,} events: this is no trace, or a damaged one"
            )
        return text, False
    end = found.commas[-1] if found.close is None else found.close
    if not _take(gathered, text[:end]):
        starts = [0, *(comma + 1 for comma in found.commas)]
        ends = [*found.commas, end] if found.close is not None else found.commas
        each = (text[start:end] for start, end in zip(starts, ends, strict=False))
        _take_each(gathered, (event for event in each if event.strip()))
    return text[end + 1 :], found.close is not None


def _take_each(gathered: Gathered, texts: Iterator[bytes]) -> None:
    """Add the events one by one, repaired where that helps. Valid JSON that is no event is counted."""
    events: list[Event] = []
    n_malformed = 0
    for text in texts:
        try:
            events.append(_event(text))
        except (msgspec.ValidationError, RecursionError):
            n_malformed += 1
        except msgspec.DecodeError as error:
            n_before = gathered.n_events + len(events) + n_malformed
            raise PeakwardError(
                f"expected JSON, got something else after {n_before:,} events: the file is damaged; "
                "record or copy it again"
            ) from error
    add(gathered, events)
    gathered.leave_out(malformed=n_malformed)
    gathered.n_events += n_malformed


def _event(text: bytes) -> Event:
    try:
        return EVENT_WITH_TEXT.decode(text)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return EVENT_WITH_TEXT.decode(repaired(text))
