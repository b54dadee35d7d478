"""Reads any trace file, recognised by its content and not by its name."""

from dataclasses import replace
from pathlib import Path

from peakward.records.errors import PeakwardError, printable
from peakward.traces.table import TraceTable

SQLITE = b"SQLite format 3\0"
GZIP = b"\x1f\x8b"
N_SNIFFED = 4096
"""The number of bytes read, because a JSON document may have white space before its first brace."""


def read(path: Path) -> TraceTable:
    """Read a trace as `read_as_is` does, with every name made safe for terminals.

    A trace may come from anyone, and a terminal would carry out an escape sequence in a kernel's name.
    """
    found = read_as_is(path)
    return replace(
        found,
        source=printable(found.source),
        names=tuple(printable(each) for each in found.names),
        processes=tuple(printable(each) for each in found.processes),
        threads=tuple(
            each._replace(tid=printable(each.tid), name=each.name and printable(each.name))
            for each in found.threads
        ),
        devices=tuple(
            each._replace(name=each.name and printable(each.name)) for each in found.devices
        ),
    )


def read_as_is(path: Path) -> TraceTable:
    """The table of a PyTorch profiler trace (.json, .json.gz), or of an Nsight Systems export (.sqlite) or
    report (.nsys-rep, where nsys is installed).

    Raises:
        PeakwardError: the file cannot be read, or is none of these.
    """
    begin = _beginning(path)
    if begin.startswith(SQLITE):
        from peakward.traces.readers import nsys_export

        return nsys_export.read(path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        from peakward.traces.readers import nsys_export

        return nsys_export.read_report(path)
    if begin.startswith(GZIP) or begin.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        from peakward.traces.readers import torch_json

        return torch_json.read(path)
    raise PeakwardError(
        f"expected a PyTorch profiler trace (.json, .json.gz) or an Nsight Systems export (.sqlite), "
        f"got {path.name!r}, which {_looks(begin)}"
    )


def refuse_pipe(path: Path) -> None:
    """Refuse a pipe: reading one waits without end where nobody writes to it, and a file's beginning is read
    twice.

    Raises:
        PeakwardError: it is a pipe, a socket or a device.
        OSError: it cannot be asked.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise PeakwardError(
            f"expected a file, got {str(path)!r}, which is a pipe or a device: write what it gives to "
            "a file, and name that"
        )


def _beginning(path: Path) -> bytes:
    try:
        refuse_pipe(path)
        with path.open("rb") as file:
            return file.read(N_SNIFFED)
    except OSError as error:
        raise PeakwardError(
            f"expected a readable trace, got {str(path)!r}: {error.strerror}"
        ) from error


def _looks(begin: bytes) -> str:
    if not begin:
        return "is empty"
    return "is neither JSON nor SQLite"
