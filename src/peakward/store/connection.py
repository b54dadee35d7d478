"""Opens the database file: its tables, how it is recognised as Peakward's, SQLite's errors."""

import os
import platform
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from peakward.records.errors import PeakwardError, printable
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
        if not is_laid(connection):
            lay(connection)
        refuse_unknown(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        refuse_damaged(connection, path)
        bring_up(connection)
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
        if not is_laid(connection):
            raise PeakwardError(
                f"expected a results database at {path}, got an empty file: "
                "`peakward run` fills one, --db names another"
            )
        refuse_unknown(connection, path)
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


SCHEMA_VERSION = 3
"""The version of the tables, kept in `meta`; the records in them have the codec's own version. 1: the first.
2: profiles. 3: recorded memory."""
APPLICATION_ID = 0x504B5744
""""PKWD", in the file's header (sqlite.org/fileformat.html, offset 68)."""
SQLITE_MAGIC = b"SQLite format 3\0"
_PROFILES = """
CREATE TABLE profile (
    id TEXT PRIMARY KEY, case_key TEXT NOT NULL, n_steps INTEGER NOT NULL,
    environment_key TEXT NOT NULL, created TEXT NOT NULL, record TEXT NOT NULL
);
CREATE INDEX profile_by_key ON profile (case_key, n_steps, environment_key);
"""
_MEMORY = """
CREATE TABLE case_memory (
    id TEXT PRIMARY KEY, case_key TEXT NOT NULL, environment_key TEXT NOT NULL,
    created TEXT NOT NULL, record TEXT NOT NULL
);
CREATE INDEX case_memory_by_key ON case_memory (case_key, environment_key);
"""
_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE measurement (
    id TEXT PRIMARY KEY, case_key TEXT NOT NULL, protocol_key TEXT NOT NULL,
    environment_key TEXT NOT NULL, final INTEGER NOT NULL, created TEXT NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX measurement_by_key ON measurement (case_key, protocol_key, environment_key);
CREATE TABLE trial (
    id TEXT PRIMARY KEY, lever TEXT NOT NULL, base_key TEXT NOT NULL, candidate_key TEXT NOT NULL,
    environment_key TEXT NOT NULL, stage TEXT NOT NULL, created TEXT NOT NULL, record TEXT NOT NULL
);
CREATE INDEX trial_by_key ON trial (lever, base_key, candidate_key, environment_key);
CREATE TABLE calibration (
    id TEXT PRIMARY KEY, environment_key TEXT NOT NULL, created TEXT NOT NULL, record TEXT NOT NULL
);
CREATE INDEX calibration_by_key ON calibration (environment_key);
CREATE TABLE study (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, title TEXT NOT NULL, complete INTEGER NOT NULL,
    created TEXT NOT NULL, record TEXT NOT NULL
);
"""
_TABLES = {1: _FIRST, 2: _PROFILES, 3: _MEMORY}
"""The tables that each version added."""


def refuse_other_files(path: Path) -> None:
    """Refuse files of other programs by their header alone, so that nothing is created beside them.

    An empty file passes: a writer that is killed while it creates its database leaves one behind.

    Raises:
        FileNotFoundError: there is no file.
        PeakwardError: unreadable, no SQLite file, or another program's.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PeakwardError(
            f'expected a results database at {path}, got "{error.strerror}": '
            "name another file with --db"
        ) from error
    if header and not header.startswith(SQLITE_MAGIC):
        raise PeakwardError(
            f"expected a results database at {path}, got a file that is no SQLite database: "
            "name another file with --db"
        )
    if header and int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise PeakwardError(
            f"expected a results database at {path}, got another program's SQLite file: "
            "name another file with --db"
        )


def is_laid(connection: sqlite3.Connection) -> bool:
    """Whether the file has any table. All tables are created at once."""
    return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether this table exists. A file that only older versions wrote lacks the newer ones."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return found is not None


def lay(connection: sqlite3.Connection) -> None:
    """Create the tables in one transaction. A kill at any moment leaves all of them or none."""
    connection.executescript(
        f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; {''.join(_TABLES.values())}"
        f"INSERT INTO meta VALUES ('schema_version', '{SCHEMA_VERSION}'); COMMIT;"
    )


def refuse_unknown(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse tables with unknown columns: those of a newer Peakward, or changed ones.

    Raises:
        PeakwardError: they are not those of the version in `meta`, or there is no such version.
    """
    triggers = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall()
    if triggers:
        raise _changed("tables alone", f"the trigger {str(triggers[0][0])[:40]!r}", path)
    found = _definitions(connection)
    _refuse_changed(found, 1, path)
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or not re.fullmatch(r"[1-9][0-9]{,8}", str(row[0])):
        got = "none" if row is None else repr(str(row[0])[:40])
        raise _changed("the version of its schema in the table meta", got, path)
    version = int(row[0])
    if version > SCHEMA_VERSION:
        raise PeakwardError(
            f"expected a database of schema {SCHEMA_VERSION} or older at {path}, got {version}: it "
            "was written by a newer Peakward; upgrade this one, or name another file with --db"
        )
    _refuse_changed(found, version, path)


def bring_up(connection: sqlite3.Connection) -> None:
    """Add the tables that an older file lacks, in one transaction.

    The file's content stays as it is. An older Peakward then refuses the file.
    """
    found = _definitions(connection)
    lacking = [
        tables for version, tables in _TABLES.items() if not _laid(version).keys() <= found.keys()
    ]
    if lacking:
        connection.executescript(
            f"BEGIN IMMEDIATE; {''.join(lacking)} "
            f"UPDATE meta SET value = '{SCHEMA_VERSION}' WHERE key = 'schema_version'; COMMIT;"
        )


@cache
def _laid(version: int) -> dict[str, str]:
    """The SQL of the tables and indices that this version added."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_TABLES[version])
        return _definitions(connection)


def _definitions(connection: sqlite3.Connection) -> dict[str, str]:
    """The SQL of each named table, view and index, by its name."""
    rows = connection.execute(
        "SELECT name, replace(sql, char(10), ' ') FROM sqlite_master"
        " WHERE type <> 'trigger' AND sql IS NOT NULL"
    )
    return {name: " ".join(str(sql).split()) for name, sql in rows}


def _refuse_changed(found: dict[str, str], version: int, path: Path) -> None:
    """Refuse a file in which a table or index of this version or an older one is missing or different."""
    for since in _TABLES:
        for name, sql in _laid(since).items():
            if name not in found and since <= version:
                raise _changed(f"the table or index {name}", "none", path)
            if name in found and found[name] != sql:
                raise _changed(f"Peakward's own {name}", "another of that name", path)


def _changed(expected: str, got: str, path: Path) -> PeakwardError:
    return PeakwardError(
        f"expected a results database with {expected} at {path}, got {got}: something else than Peakward "
        "changed it; move the file away, or name another with --db"
    )


def refuse_damaged(connection: sqlite3.Connection, path: Path) -> None:
    """Raise where the file's pages contradict one another. This takes 15 ms for 42 MB in the page cache."""
    (fault,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if fault != "ok":
        raise PeakwardError(
            f'expected a sound database at {path}, got "{" ".join(fault.split())}": move the file '
            "away, or name another with --db; `sqlite3 FILE .recover` may save its records"
        )


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
