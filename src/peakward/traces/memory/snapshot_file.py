"""Reads the file of an allocator snapshot into columns."""

import gzip
import zlib
from pathlib import Path
from typing import Any, Final

from peakward.records.errors import PeakwardError, printable
from peakward.traces.memory.plain_pickle import CHUNK, Malformed, PlainPickle, Readable
from peakward.traces.memory.segments import EVENT, MAX_DEVICES, EventCollector, segments
from peakward.traces.memory.table import Annotation, Snapshot
from peakward.traces.readers.memory_limit import free_bytes
from peakward.traces.reading import GZIP, SQLITE, refuse_pipe

EXPECTED: Final = "expected an allocator snapshot (torch.cuda.memory._dump_snapshot)"
MOST_UNPACKED: Final = 100
"""The most bytes of a gzip's content, as a multiple of the gzip's own. Recordings of an H100 reach 8 to 15,
content made to pack well 1000."""
_MAX_TEXT: Final = 500
_UNKNOWN_FREE_BYTES: Final = 8 << 30


def read(path: Path, max_bytes: int | None = None) -> Snapshot:
    """The snapshot in a pickle, gzipped or not.

    Args:
        path: what `torch.cuda.memory._dump_snapshot` wrote, or a pickle of what
            `torch.cuda.memory._snapshot` gave.
        max_bytes: of what may be held at once; None is half of the memory that is free.

    Raises:
        PeakwardError: it cannot be read, is no snapshot, asks for more than plain values, or does
            not fit into memory.
    """
    if max_bytes is None:
        max_bytes = (free_bytes() or _UNKNOWN_FREE_BYTES) // 2
    try:
        refuse_pipe(path)
        with path.open("rb") as plain:
            begin = plain.read(512)
            plain.seek(0)
            if begin.startswith(GZIP):
                packed_bytes = plain.seek(0, 2)
                plain.seek(0)
                with gzip.open(plain) as unpacked:
                    bounded = _Bounded(unpacked, CHUNK + MOST_UNPACKED * packed_bytes)
                    return _read(bounded, path.name, max_bytes)
            _check_beginning(begin, path.name)
            return _read(plain, path.name, max_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PeakwardError(
            f"{EXPECTED}, got {printable(path.name)!r}, whose gzip is damaged ({error}): copy it again"
        ) from error
    except OSError as error:
        raise PeakwardError(
            f"expected a readable snapshot, got {printable(str(path))!r}: {error.strerror or error}"
        ) from error


class _Bounded:
    """The content of a gzip, up to the size that a recording would have."""

    def __init__(self, unpacked: gzip.GzipFile, most: int) -> None:
        self._unpacked = unpacked
        self._most = most

    def read(self, n_bytes: int) -> bytes:
        """The next bytes.

        Raises:
            PeakwardError: it has more than `most` bytes.
        """
        found = self._unpacked.read(n_bytes)
        if self._unpacked.tell() > self._most:
            raise PeakwardError(
                f"{EXPECTED}, got a gzip that unpacks to more than {MOST_UNPACKED} times its bytes: such a "
                "file is made to fill memory; if you trust it, unpack it with gunzip"
            )
        return found


def _read(file: Readable, name: str, max_bytes: int) -> Snapshot:
    collector = EventCollector()
    try:
        found = PlainPickle(file, collector, max_bytes).read()
    except Malformed as error:
        raise PeakwardError(
            f"{EXPECTED}, got {printable(name)!r}, which {error}: dump or copy it again"
        ) from error
    return _snapshot(found, collector, printable(name))


def _snapshot(found: Any, collector: EventCollector, name: str) -> Snapshot:
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list | tuple):
        raise PeakwardError(
            f"{EXPECTED}, a dict with segments, got {name!r}, which holds "
            f"{_kind(found)}: pickle what torch.cuda.memory._snapshot() gives"
        )
    held = segments(found["segments"], collector.stacks)
    n_by_device = _event_counts(found.get("device_traces", ()), len(collector))
    settings = found.get("allocator_settings")
    return Snapshot(
        source=name,
        segments=held,
        events=collector.events(n_by_device),
        frames=tuple(collector.stacks.frames),
        stacks=tuple(collector.stacks.stacks),
        annotations=_annotations(found.get("external_annotations", ())),
        settings=settings if isinstance(settings, dict) else {},
        directory=str(Path.cwd()),
    )


def _event_counts(traces: Any, n_events: int) -> list[int]:
    """The number of events of each device."""
    if isinstance(traces, list | tuple) and len(traces) <= MAX_DEVICES:
        counts = [len(each) if isinstance(each, list | tuple) else -1 for each in traces]
        # The sum is checked first: a list that is named many times is examined only where the sum is right.
        if sum(counts) == n_events and all(event is EVENT for each in traces for event in each):
            return counts
    raise PeakwardError(
        f"expected device_traces to be lists of events, each once, of at most {MAX_DEVICES} devices, got "
        "something else: the snapshot was edited or is damaged, so record it again"
    )


def _annotations(found: Any) -> tuple[Annotation, ...]:
    """The annotations in the order of their times. One that is named several times is kept once."""
    if not isinstance(found, list | tuple):
        return ()
    each_once = {id(each): each for each in found if isinstance(each, dict)}.values()
    made = [
        Annotation(
            each.get("device", 0),
            each["time_us"],
            printable(each["name"][:_MAX_TEXT]),
            each["stage"][:20] if isinstance(each.get("stage"), str) else "",
        )
        for each in each_once
        if type(each.get("time_us")) is int
        and type(each.get("device", 0)) is int
        and isinstance(each.get("name"), str)
    ]
    return tuple(sorted(made, key=lambda each: each.time_us))


def _check_beginning(begin: bytes, name: str) -> None:
    if begin.startswith(b"\x80"):
        return
    looks = "is neither a pickle nor gzip"
    if not begin:
        looks = "is empty"
    elif begin.startswith(b"PK\x03\x04"):
        looks = "is a zip archive, such as torch.save writes"
    elif begin.startswith(SQLITE) or begin.lstrip()[:1] in (b"{", b"["):
        looks = "looks like a trace: `peakward trace` reads those"
    elif begin[257:262] == b"ustar":
        looks = "is a tar archive"
    raise PeakwardError(f"{EXPECTED}, got {printable(name)!r}, which {looks}")


def _kind(found: object) -> str:
    if isinstance(found, dict):
        return "a dict without them"
    return "nothing" if found is None else f"a {type(found).__name__}"
