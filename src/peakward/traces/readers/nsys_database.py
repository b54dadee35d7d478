"""Reads tables of an Nsight Systems export in bulk, from a file that anybody may have made.

Only plain reads of the tables in `READ` pass. No view, trigger, function or extension of the file runs, and
no query does more work than the file's size justifies.
"""

import sqlite3
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peakward.records.errors import PeakwardError
from peakward.traces.table import NONE, Ints

_CHUNK_ROWS = 1 << 16
_BYTES_PER_ROW = 4
"""The least bytes of a row: its pointer, its length and its number. Pages that several others point to can
hold more rows than the file has room for, and without end where each page of a chain does so."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows with valid integers."""

    integers: dict[str, Ints]
    """Integers by column; NONE where the file has NULL, or has no such column."""
    texts: tuple[str | None, ...]
    """The requested text column; else empty."""
    n_left_out: int
    """Rows with text, a fraction or nothing in place of an integer."""


class Export:
    """An open export. Its methods raise `sqlite3.Error`, which `opened` turns into PeakwardError."""

    def __init__(self, connection: sqlite3.Connection, source: str, size_bytes: int) -> None:
        self._connection = connection
        self._source = source
        self._most_rows = size_bytes // _BYTES_PER_ROW
        self.names = _real_tables(connection)
        self._columns = {each: _columns(connection, each) for each in self.names & READ}

    def __contains__(self, table: str) -> bool:
        return table in self._columns

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; none where the table does not exist."""
        return self._columns.get(table, frozenset())

    def chunks(
        self,
        table: str,
        required: Sequence[str],
        optional: Sequence[str] = (),
        text: str | None = None,
    ) -> Iterator[Chunk]:
        """The table in pieces, in the order of the file; nothing where there is no such table.

        Raises PeakwardError where a required column is missing.
        """
        if table not in self:
            return
        there = self.columns(table)
        if missing := [each for each in required if each not in there]:
            raise PeakwardError(
                f"expected the columns {', '.join(required)} in {table}, got none named "
                f"{', '.join(missing)} in {self._source}: export the report again with a newer "
                "Nsight Systems"
            )
        names = (*required, *(each for each in optional if each in there))
        asked = [f'"{each}"' for each in required]
        asked += [f'ifnull("{each}", {NONE})' for each in names[len(required) :]]
        asked += [f'"{text}"' if text in there else "NULL"] if text else []
        absent = tuple(each for each in optional if each not in there)
        n_rows = 0
        with closing(self._connection.execute(f'SELECT {", ".join(asked)} FROM "{table}"')) as rows:
            while found := rows.fetchmany(_CHUNK_ROWS):
                n_rows += len(found)
                if n_rows > self._most_rows:
                    raise sqlite3.DatabaseError(f"more rows in {table} than the file has room for")
                yield _chunk(names, absent, found, with_text=text is not None)

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """The texts of these ids in StringIds, where they exist.

        Other texts stay unread: the table also holds output of the profiled program.
        """
        values: dict[int, str] = {}
        if not {"id", "value"} <= self.columns("StringIds"):
            return values
        wanted = sorted(ids)
        for first in range(0, len(wanted), 500):
            some = wanted[first : first + 500]
            marks = ", ".join("?" * len(some))
            rows = self._connection.execute(
                f'SELECT "id", "value" FROM "StringIds" WHERE "id" IN ({marks})', some
            )
            values.update((each, _decoded(value)) for each, value in rows if type(value) is bytes)
        return values


@contextmanager
def opened(path: Path, source: str) -> Iterator[Export]:
    """The export at `path`, called `source` in messages. Raises PeakwardError for anything wrong with it."""
    size_bytes = refuse_what_is_no_database(path, source)
    try:
        with closing(connect(path, size_bytes)) as connection:
            yield Export(connection, source, size_bytes)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise PeakwardError(
            f'expected a sound Nsight Systems SQLite export at {source}, got "{one_line(error)}": '
            "export or copy it again"
        ) from error


def _real_tables(connection: sqlite3.Connection) -> frozenset[str]:
    """Tables with rows of their own. Virtual tables have no root page."""
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    )
    return frozenset(
        _decoded(name)
        for name, sql in rows
        if type(name) is bytes and type(sql) is bytes and sql[:13].upper() == b"CREATE TABLE "
    )


def _columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """Stored columns. table_info leaves computed ones out."""
    rows = connection.execute(f'PRAGMA table_info("{table}")')
    return frozenset(_decoded(row[1]) for row in rows)


def _chunk(
    names: Sequence[str], absent: Sequence[str], rows: list[tuple[Any, ...]], *, with_text: bool
) -> Chunk:
    try:
        kept, integers = rows, _integers(names, rows)
    except TypeError:
        kept = [row for row in rows if all(type(each) is int for each in row[: len(names)])]
        integers = _integers(names, kept)
    integers.update((each, np.full(len(kept), NONE, np.int64)) for each in absent)
    texts = [row[-1] for row in kept] if with_text else []
    decoded = tuple(_decoded(each) if type(each) is bytes else None for each in texts)
    return Chunk(integers, decoded, len(rows) - len(kept))


def _integers(names: Sequence[str], rows: list[tuple[Any, ...]]) -> dict[str, Ints]:
    """The integers by column. Raises TypeError for any other value: `array` accepts nothing else, where numpy
    would parse text."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {
        name: np.array(array("q", column), np.int64)
        for name, column in zip(names, columns, strict=False)
    }


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", "replace")


READ = frozenset(
    (
        "StringIds",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "NVTX_EVENTS",
        "PROFILER_OVERHEAD",
        "ThreadNames",
        "TARGET_INFO_GPU",
        "TARGET_INFO_CUDA_DEVICE",
        "TARGET_INFO_SESSION_START_TIME",
    )
)
"""All tables that are ever read. META_DATA_CAPTURE and TARGET_INFO_SYSTEM_ENV are never read: they hold the
environment variables of the profiled program."""
_LONGEST_BYTES = 1 << 26
_STEP_INSTRUCTIONS = 10_000
_INSTRUCTIONS_PER_BYTE = 8
"""A row takes about two SQLite instructions for each column and has more bytes than columns. A malicious file
can take any number."""


def connect(path: Path, size_bytes: int) -> sqlite3.Connection:
    """A connection that reads only `READ`. Text comes as bytes, of any encoding."""
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        connection.text_factory = bytes
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(_budget(size_bytes), _STEP_INSTRUCTIONS)
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.set_authorizer(_authorize)
    except BaseException:
        connection.close()
        raise
    return connection


def _budget(size_bytes: int) -> Callable[[], bool]:
    """A check for the limit: 10 million instructions, and eight for each byte of the file."""
    left = 1_000 + size_bytes * _INSTRUCTIONS_PER_BYTE // _STEP_INSTRUCTIONS

    def spent() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return spent


def _authorize(
    action: int, first: str | None, second: str | None, _: str | None, view: str | None
) -> int:
    """SQLite's callback when it compiles a statement. `view` is the view or trigger that reads."""
    allowed = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and first in READ | {"sqlite_master"})
        or (action == sqlite3.SQLITE_FUNCTION and second == "ifnull")
        or (action == sqlite3.SQLITE_PRAGMA and first == "table_info")
    )
    return sqlite3.SQLITE_OK if allowed and view is None else sqlite3.SQLITE_DENY


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
