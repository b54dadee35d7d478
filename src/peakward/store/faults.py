"""Translates SQLite's errors into one line that says what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peakward.records.errors import PeakwardError

_ADVICE = {
    sqlite3.SQLITE_FULL: (
        "room for another record",
        "free space and run the same command again; what was stored before stays",
    ),
    sqlite3.SQLITE_IOERR: (
        "a disk that can be read and written",
        "check the disk and its free space, then run the same command again",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "a sound database",
        "move the file away, or name another with --db; `sqlite3 FILE .recover` may save its records",
    ),
    sqlite3.SQLITE_NOTADB: ("a results database", "name another file with --db"),
    sqlite3.SQLITE_READONLY: (
        "a file that may be written",
        "change its permissions, or name another with --db",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "a file that can be opened, in a folder that can be written",
        "create the folder, change its permissions, or name another file with --db",
    ),
    sqlite3.SQLITE_BUSY: (
        "a database that nothing else holds locked",
        "close the other program that has it open, then run the same command again",
    ),
}


@contextmanager
def told_in_one_line(path: Path) -> Iterator[None]:
    """Turn SQLite's error about the file into a PeakwardError. Peakward's own errors pass unchanged."""
    try:
        yield
    except sqlite3.Error as error:
        # Extended codes keep the primary one in their low byte; misuse from Python has no code.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code not in _ADVICE:
            raise
        expected, advice = _ADVICE[code]
        raise PeakwardError(f'expected {expected} at {path}, got "{error}": {advice}') from error
