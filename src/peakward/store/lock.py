"""One writer at a time: a lock of the operating system, gone with the process that holds it."""

import sqlite3
from pathlib import Path


def take(path: Path) -> sqlite3.Connection | None:
    """Take the writer's lock of the database at `path`; None where another writer holds it.

    It is held until the connection is closed or its process dies, however it dies. The lock is
    SQLite's own exclusive one on an empty file beside the database: unlike `flock` it is not passed
    on to forked children (a data loader's worker would hold it after its parent was killed), unlike
    plain `fcntl` it also keeps a second Store of the same process out, and it works on Windows. The
    file stays: were it removed, a writer that had just opened it and one that creates it anew would
    both hold "the" lock.

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
