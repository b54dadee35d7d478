"""The lock that allows one writer at a time. The operating system releases it with the process."""

import sqlite3
from pathlib import Path


def take(path: Path) -> sqlite3.Connection | None:
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
