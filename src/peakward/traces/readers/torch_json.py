"""PyTorch profiler traces: Kineto's Chrome JSON, `.json` or `.json.gz`.

The array of events can be the whole file, or a key of an object with other keys before and after it.
"""

import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np

from peakward.records.errors import PeakwardError, printable
from peakward.traces.readers.gathered import Gathered, take_in
from peakward.traces.readers.json_text import elements, nanoseconds_of_text, repaired
from peakward.traces.readers.memory_limit import free_bytes
from peakward.traces.readers.torch_columns import Timed, add_timed
from peakward.traces.readers.torch_events import Begin, Id, foreign_device, foreign_operator
from peakward.traces.readers.torch_gather import gather
from peakward.traces.readers.torch_second import (
    PIECE_BYTES,
    Truncated,
    gunzipped,
    is_gzip,
    plain,
    second_half,
)
from peakward.traces.readers.torch_table import Metadata, left_out, said_twice, table
from peakward.traces.table import TraceTable

_ENOUGH_EVENTS = 100_000
"""The most entries without an event among them before the file is refused: 60 MB of numbers took minutes."""


def read(path: Path, *, max_processes: int = 2) -> TraceTable:
    """The whole trace. Two processes read a large uncompressed one, if `max_processes` allows.

    GPU work has the category of a kernel, copy or set; ranges that the profiler projects onto a stream are
    left out. An event without a duration is an instant. Events with negative times, with times beyond 146
    years or durations of 104 days and more, and entries that are no events, are left out and counted in
    `limits`.

    Raises:
        PeakwardError: there is no such file, it is no trace, it is damaged or cut off, all of its
            events were left out, or its columns would take more than half of the memory that is free.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path, max_processes)
    except PeakwardError as error:
        raise PeakwardError(f"{printable(path.name)}: {error}") from error
    except OSError as error:
        raise PeakwardError(
            f"expected a readable trace at {printable(str(path))}, got {error.strerror or error}: "
            "check the path"
        ) from error


def _read(file: IO[bytes], path: Path, max_processes: int) -> TraceTable:
    gathered = Gathered()
    check = _check(gathered, file)
    try:
        if is_gzip(file):
            # Unpacking in a parallel thread gains nothing: each piece holds the interpreter's lock for less
            # than the 5 ms after which another thread may ask for it.
            # for less than the 5 ms after which another thread may ask for it.
            outer = _gather(gathered, gunzipped(file, PIECE_BYTES), check)
        else:
            outer = _gather_plain(gathered, file, path, check, max_processes)
        pair(gathered)
        _refuse_strangers(gathered)
        _refuse_foreign(gathered, outer)
        _refuse_nothing(gathered, outer)
        return table(gathered, outer, path.name)
    except Truncated:
        raise cut_off(gathered.n_events) from None
    except zlib.error as error:
        raise PeakwardError(
            f"expected a sound gzip file, got damage after {gathered.n_events:,} events: "
            "copy it again"
        ) from error
    except MemoryError:
        raise _too_large(gathered, file) from None


def _gather(gathered: Gathered, pieces: Iterator[bytes], check: Callable[[], None]) -> Metadata:
    begun = head(pieces)
    rest, closed = gather(gathered, pieces, begun.rest, check)
    return _finish(gathered, begun, rest, closed, pieces)


def _gather_plain(
    gathered: Gathered, file: IO[bytes], path: Path, check: Callable[[], None], max_processes: int
) -> Metadata:
    begun = head(plain(file, PIECE_BYTES))
    pieces, rest, closed = plain(file, PIECE_BYTES), begun.rest, False
    with second_half(path, file) if max_processes > 1 else nullcontext(None) as second:
        if second is not None:
            rest, closed = gather(gathered, plain(file, PIECE_BYTES, second.start), rest, check)
            # Nothing is left over where the second half starts with an event.
            sent = None if closed or rest.strip() else second.sent()
            if sent is not None:
                rest, closed, pieces = take_in(gathered, sent), True, iter(())
                check()
    if not closed:
        rest, closed = gather(gathered, pieces, rest, check)
    return _finish(gathered, begun, rest, closed, pieces)


class Head(NamedTuple):
    """The file up to the array of events."""

    metadata: Metadata
    in_object: bool
    rest: bytes
    """Text that was read beyond the array's opening bracket."""


def _finish(
    gathered: Gathered, begun: Head, rest: bytes, closed: bool, pieces: Iterator[bytes]
) -> Metadata:
    if not closed:
        raise cut_off(gathered.n_events)
    return tail(begun, rest, pieces, gathered.n_events).or_else(begun.metadata)


def _check(gathered: Gathered, file: IO[bytes]) -> Callable[[], None]:
    free = free_bytes()

    def check() -> None:
        if gathered.n_events > _ENOUGH_EVENTS:
            _refuse_strangers(gathered)
        if free is not None and gathered.n_bytes > free // 2:
            raise _too_large(gathered, file)

    return check


def _too_large(gathered: Gathered, file: IO[bytes]) -> PeakwardError:
    share = file.tell() / max(os.fstat(file.fileno()).st_size, 1)
    return PeakwardError(
        f"expected a trace whose columns fit in half of the free memory, got {gathered.n_events:,} "
        f"events, {gathered.n_bytes / 2**30:.2f} GiB, in {share:.0%} of the file: record fewer "
        "steps or no stacks, or read it where there is more memory"
    )


def _refuse_strangers(gathered: Gathered) -> None:
    n_malformed = gathered.left_out.malformed
    if n_malformed and n_malformed == gathered.n_events:
        raise PeakwardError(
            f"expected events of the Trace Event Format, got an array of {n_malformed:,} entries of "
            "which none is one: give a file that torch.profiler's export_chrome_trace wrote"
        )


def _refuse_foreign(gathered: Gathered, outer: Metadata) -> None:
    """Refuse a trace of an unsupported accelerator. Its work would be missing, and the host's would look like
    a CPU's."""
    seen = [
        *gathered.foreign,
        *map(foreign_operator, gathered.names),
        *(foreign_device(each.name or "") for each in outer.devices()),
    ]
    makers = {maker for maker in seen if maker}
    if makers:
        raise PeakwardError(
            "expected a trace of a CPU, or of a GPU by NVIDIA or AMD, got one of "
            f"{sorted(makers)[0]}: such an accelerator is not supported"
        )


def _refuse_nothing(gathered: Gathered, outer: Metadata) -> None:
    """Refuse a trace without any readable event, because an empty report would hide the reason."""
    if gathered.gpu.n_bytes or gathered.host.n_bytes:
        return
    whys = [*left_out(gathered.left_out), *said_twice(gathered, outer)]
    if whys:
        raise PeakwardError(
            f"{'; '.join(whys)}. Expected an event that can be read, got none among "
            f"{gathered.n_events:,}: give the file as torch.profiler's export_chrome_trace wrote it"
        )


def pair(gathered: Gathered) -> None:
    """Add the halves kept so far, in order of time. An end closes the last open event of its thread.

    Halves without a counterpart are counted as unmatched.
    """
    halves, gathered.halves = gathered.halves, []
    times = nanoseconds_of_text([each.ts for each in halves])
    open_by_thread: dict[tuple[Id, Id], list[tuple[Begin, int, int]]] = defaultdict(list)
    whole: list[tuple[int, Begin, int, int]] = []
    for position in np.argsort(times, kind="stable").tolist():
        half, time_ns = halves[position], int(times[position])
        still_open = open_by_thread[half.pid, half.tid]
        if isinstance(half, Begin):
            still_open.append((half, position, time_ns))
        elif still_open:
            begin, place, start_ns = still_open.pop()
            whole.append((place, begin, start_ns, time_ns - start_ns))
    gathered.leave_out(unmatched=len(halves) - 2 * len(whole))
    if whole:
        # Sorted by their beginnings in the file, because the places differ.
        _, begins, starts_ns, durations_ns = zip(*sorted(whole, key=itemgetter(0)), strict=True)
        add_timed(gathered, Timed(begins, np.array(starts_ns), np.array(durations_ns)))


MAX_BYTES = 64 << 20
_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_MAX_CANDIDATES = 16
"""The most candidates that are checked. The key within a string or a nested object does not count, and each
check decodes all text before it."""
_BLANK = b" \t\r\n\xef\xbb\xbf"
"""White space, and the bytes of a byte order mark."""
_WANTED = "expected a PyTorch profiler trace, a JSON object with an array called traceEvents"
_ADVICE = "give a file that torch.profiler's export_chrome_trace wrote"


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
