"""The array of events of a PyTorch trace, piece by piece, into the columns that grow.

A piece is cut where an event seems to end and the next to begin, and decoded at once. A cut that was
guessed wrongly leaves a string or a bracket open, so that the piece does not decode; then, and where
the array ends or an event is not as it should be, the events are told apart byte by byte.
"""

import re
from collections.abc import Callable, Iterator

import msgspec

from peakward.records.errors import PeakwardError
from peakward.traces.readers.gathered import Gathered
from peakward.traces.readers.json_repair import repaired
from peakward.traces.readers.json_structure import elements
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
"""No string has this in it: a quote ends it, and no letter follows that. Nested objects may."""

_WINDOW_BYTES = 1 << 14
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def gather(
    gathered: Gathered, pieces: Iterator[bytes], rest: bytes, check: Callable[[], None]
) -> tuple[bytes, bool]:
    """Take in events from `rest`, the text from an event's start on, and from the pieces that follow.

    `check` is called after each piece. Returns what follows the array's closing bracket and True,
    or, if the pieces end before it, what is left over and False.

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
        # An event that is larger than what was read so far: look again when there is twice as much.
        held, wanted = [rest], 2 * len(rest) if rest is text else 0
        check()
    return _take_exactly(gathered, b"".join(held))


def _last_cut(text: bytes) -> tuple[int, int]:
    """Where the last event that is followed by another seems to end, and that other to start; 0, 0
    where there is none."""
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
    """Take in all of these events, or say that the text is not of whole events."""
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
    """The events of the text that are whole; what is left, and whether the array ended."""
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
    """One by one, repaired where that helps; those that are JSON but no event are counted."""
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
