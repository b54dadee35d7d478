"""Reads tables of an export in bulk: integers into arrays, text by its id."""

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peakward.records.errors import PeakwardError
from peakward.traces.readers.nsys.file import one_line, refuse_what_is_no_database
from peakward.traces.readers.nsys.sandbox import READ, connect
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
