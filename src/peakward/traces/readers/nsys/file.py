"""Checks whether a file can be an Nsight Systems export, before SQLite opens it."""

import stat
from pathlib import Path

from peakward.records.errors import PeakwardError

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100


def size_of_regular(path: Path, wanted: str) -> int:
    """The bytes of the file. Raises PeakwardError where it does not exist, is empty, or is a folder."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise PeakwardError(
            f"expected {wanted}, got a path that cannot be opened ({one_line(error)}): "
            f"check the path {one_line(path)}"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
        raise PeakwardError(
            f"expected {wanted}, got {kind} at {one_line(path)}: name the file itself"
        )
    if found.st_size == 0:
        raise PeakwardError(
            f"expected {wanted}, got an empty file at {one_line(path)}: export or copy it again"
        )
    return found.st_size


def refuse_what_is_no_database(path: Path, source: str) -> int:
    """The bytes of the database, which has a whole header and as many pages as the header says.

    Offsets follow the SQLite file format (https://sqlite.org/fileformat.html, section 1.3).
    """
    wanted = "an Nsight Systems SQLite export"
    size_bytes = size_of_regular(path, wanted)
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise PeakwardError(
            f"expected {wanted}, got a file that cannot be read ({one_line(error)}): "
            "check its permissions"
        ) from error
    if not header.startswith(_MAGIC):
        raise PeakwardError(
            f"expected {wanted}, got a file that is no SQLite database (or an encrypted one) at "
            f"{source}: make one with `nsys export --type sqlite --output OUT.sqlite "
            "REPORT.nsys-rep`"
        )
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    counted = header[24:28] == header[92:96]
    n_pages = int.from_bytes(header[28:32], "big") if counted else 0
    if len(header) < _HEADER_BYTES or size_bytes < n_pages * page_bytes:
        raise PeakwardError(
            f"expected {wanted}, got {size_bytes} of {max(n_pages * page_bytes, _HEADER_BYTES)} "
            f"bytes at {source}: the file is cut short; export or copy it again"
        )
    _refuse_unfinished(path, wanted)
    return size_bytes


def _refuse_unfinished(path: Path, wanted: str) -> None:
    """Refuse a database with a log beside it. The log holds data that the file lacks, and SQLite skips it
    when it opens the file as immutable."""
    for suffix in ("-wal", "-journal"):
        log = path.with_name(path.name + suffix)
        if log.is_file() and log.stat().st_size > 0:
            raise PeakwardError(
                f"expected {wanted} that is complete, got one with {one_line(log.name)} beside it: "
                "let the program that writes it end, or export it again"
            )


def one_line(said: object) -> str:
    """The message of a file or program as at most 300 printable characters."""
    return "".join(each if each.isprintable() else " " for each in str(said))[:300]
