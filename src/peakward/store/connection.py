"""Opens the database file for writing or for reading."""

import os
import platform
import sqlite3
from pathlib import Path

from peakward.records.errors import PeakwardError
from peakward.records.printable import printable
from peakward.store import schema
from peakward.store.rows import now

BUSY_TIMEOUT_S = 5.0
"""A reader meets a lock only while another connection opens or closes the file."""


def connect_writer(path: Path) -> sqlite3.Connection:
    """A connection that may write to existing, sound tables.

    A write-ahead log lets reports read while a run writes. `synchronous` is FULL, so that every acknowledged
    record also survives a power cut or a cluster node's reset. NORMAL would suffice for a killed process,
    whose data the kernel already has. FULL costs one fsync a record: milliseconds, against the seconds of a
    measurement.
    """
    connection = _connect(path)
    try:
        if not schema.is_laid(connection):
            schema.lay(connection)
        schema.refuse_unknown(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        schema.refuse_damaged(connection, path)
        schema.bring_up(connection)
        _sign(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write.

    A write-ahead log needs a shared-memory file beside it, which a read-only folder does not allow. Where the
    last writer closed there is no log, and SQLite may open the file as immutable. It must not where a
    rollback journal lies beside the file: tables are created under one, and after a killed creation the pages
    make no sense until a writer has rolled them back.
    """
    try:
        return _connect_reader(path, "mode=ro")
    except sqlite3.OperationalError as error:
        closed_to_us = error.sqlite_errorcode & 0xFF in (
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_CANTOPEN,
        )
        if closed_to_us and path.with_name(path.name + "-journal").exists():
            raise PeakwardError(
                f"expected a results database at {path}, got one whose creation was cut off: run the command "
                "again that made it, it resumes; or name another file with --db"
            ) from error
        if not closed_to_us or path.with_name(path.name + "-wal").exists():
            raise
        return _connect_reader(path, "mode=ro&immutable=1")


def _connect_reader(path: Path, mode: str) -> sqlite3.Connection:
    connection = _connect(f"{path.as_uri()}?{mode}")
    try:
        if not schema.is_laid(connection):
            raise PeakwardError(
                f"expected a results database at {path}, got an empty file: "
                "`peakward run` fills one, --db names another"
            )
        schema.refuse_unknown(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(place: Path | str) -> sqlite3.Connection:
    """A connection whose text columns come out printable. Records are read as bytes, for the codec."""
    connection = sqlite3.connect(
        place, uri=isinstance(place, str), timeout=BUSY_TIMEOUT_S, isolation_level=None
    )
    connection.text_factory = lambda data: printable(data.decode(errors="replace"))
    return connection


def _sign(connection: sqlite3.Connection) -> None:
    """Record who writes, for a second writer's message. This also proves that the file can be written."""
    name = f"process {os.getpid()} on {platform.node()} (since {now()[:19]} UTC)"
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('writer', ?)", (name,))


def last_writer(path: Path) -> str:
    """The last recorded writer, or "another run" where it cannot be read now."""
    try:
        connection = connect_reader(path)
    except (sqlite3.Error, PeakwardError):
        return "another run"
    try:
        signed = connection.execute("SELECT value FROM meta WHERE key = 'writer'").fetchone()
    finally:
        connection.close()
    return str(signed[0]) if signed else "another run"


def take_lock(path: Path) -> sqlite3.Connection | None:
    """Take the writer's lock of the database at `path`; None where another writer holds it.

    The lock lasts until the connection is closed or its process dies in any way. It is SQLite's exclusive
    lock on an empty file beside the database. Unlike `flock`, forked children do not inherit it (a data
    loader's worker would hold it after its parent was killed). Unlike plain `fcntl`, it also excludes a
    second Store of the same process, and it works on Windows. The file is never removed: otherwise a writer
    that had just opened it and one that creates it anew would both hold "the" lock.

    Raises:
        sqlite3.Error: the file cannot be created.
    """
    connection = sqlite3.connect(
        path.with_name(path.name + "-lock"), timeout=0, isolation_level=None
    )
    try:
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            return None
        raise
    return connection
