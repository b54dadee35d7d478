"""Opens SQLite files that anybody may have made.

Only plain reads of the tables in `READ` pass. No view, trigger, function or extension of the file runs, and
no query does more work than the file's size justifies.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

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
