"""A file of an allocator snapshot to its columns."""

import gzip
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

from peakward.records.errors import PeakwardError
from peakward.records.printable import printable
from peakward.traces.memory.collected import EVENT, EventCollector
from peakward.traces.memory.plain_pickle import Malformed, PlainPickle
from peakward.traces.memory.segments import segments
from peakward.traces.memory.table import Annotation, Snapshot
from peakward.traces.readers.memory_limit import free_bytes
from peakward.traces.reading import GZIP, SQLITE, refuse_pipe

EXPECTED: Final = "expected an allocator snapshot (torch.cuda.memory._dump_snapshot)"
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
                with gzip.open(plain) as unpacked:
                    return _read(unpacked, path.name, max_bytes)  # type: ignore[arg-type]
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


def _read(file: BinaryIO, name: str, max_bytes: int) -> Snapshot:
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
    """Events of each device."""
    right = isinstance(traces, list | tuple) and all(
        isinstance(each, list | tuple) and all(event is EVENT for event in each) for each in traces
    )
    counts = [len(each) for each in traces] if right else [-1]
    if sum(counts) != n_events:
        raise PeakwardError(
            "expected device_traces to be lists of events, each once, got something else: the "
            "snapshot was edited or is damaged, so record it again"
        )
    return counts


def _annotations(found: Any) -> tuple[Annotation, ...]:
    if not isinstance(found, list | tuple):
        return ()
    return tuple(
        Annotation(
            each.get("device", 0),
            each["time_us"],
            printable(each["name"]),
            printable(str(each.get("stage", ""))[:20]),
        )
        for each in found
        if isinstance(each, dict)
        and type(each.get("time_us")) is int
        and type(each.get("device", 0)) is int
        and isinstance(each.get("name"), str)
    )


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
