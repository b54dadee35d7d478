"""Database rows: a record as JSON, and the columns that it is found by."""

import hashlib
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from peakward.records.calibration import Calibration
from peakward.records.case import Case
from peakward.records.case_key import case_key
from peakward.records.codec import as_read_back, from_json, to_json
from peakward.records.errors import PeakwardError
from peakward.records.lever import Trial
from peakward.records.measurement import Measurement, Protocol
from peakward.records.memory import CaseMemory
from peakward.records.profile import CaseProfile
from peakward.records.study import Study

Record = Measurement | Trial | Calibration | CaseProfile | CaseMemory | Study
KINDS: tuple[tuple[str, type[Record]], ...] = (
    ("measurement", Measurement),
    ("trial", Trial),
    ("calibration", Calibration),
    ("profile", CaseProfile),
    ("case_memory", CaseMemory),
    ("study", Study),
)
"""Each table with the type of its records."""
RECORD = "CAST(record AS BLOB)"
CREATED = "CAST(created AS TEXT)"
"""The two columns as they are read. They are cast because an edited file may hold any type in any column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record with all columns of its row."""

    table: str
    columns: dict[str, str | int]
    record: Record


def key_of_case(case: Case) -> str:
    """The case's key: equal for equal cases."""
    return case_key(as_read_back(case))


def key_of_protocol(protocol: Protocol) -> str:
    """A stable 16-digit key of the protocol's identity."""
    encoded = msgspec.json.encode(as_read_back(protocol).identity, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]


def now() -> str:
    """The current time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat()


def _key_columns(record: Record) -> tuple[str, dict[str, str | int]]:
    """The table, and its columns without the record."""
    if isinstance(record, Measurement):
        return "measurement", {
            "id": record.id,
            "case_key": key_of_case(record.case),
            "protocol_key": key_of_protocol(record.protocol),
            "environment_key": record.environment.key,
            "final": record.final,
            "created": record.started_at,
        }
    if isinstance(record, Trial):
        return "trial", {
            "id": record.id,
            "lever": record.lever,
            "base_key": key_of_case(record.base),
            "candidate_key": key_of_case(record.candidate),
            "environment_key": record.environment_key,
            "stage": record.stage,
        }
    if isinstance(record, Calibration):
        return "calibration", {
            "id": record.id,
            "environment_key": record.environment.key,
            "created": record.started_at,
        }
    if isinstance(record, CaseProfile):
        return "profile", {
            "id": record.id,
            "case_key": key_of_case(record.case),
            "n_steps": record.n_steps,
            "environment_key": record.environment_key,
        }
    if isinstance(record, CaseMemory):
        return "case_memory", {
            "id": record.id,
            "case_key": key_of_case(record.case),
            "environment_key": record.environment_key,
        }
    return "study", {
        "id": record.id,
        "name": record.name,
        "title": record.title,
        "complete": record.complete,
        "created": record.started_at,
    }


def row_of(record: Record, *, stored_at: str) -> Row:
    """The record's row. `stored_at` replaces a missing start.

    Raises:
        PeakwardError: it could be written but not read back.
    """
    record = as_read_back(record)
    table, keys = _key_columns(record)
    columns = {"created": stored_at, **keys, "record": to_json(record).decode()}
    return Row(table=table, columns=columns, record=record)


def _is_news(row: Row, stored: Record) -> bool:
    """Whether the row should replace the stored record with its id."""
    if isinstance(row.record, Study) and isinstance(stored, Study):
        return (row.record.complete, row.record.wall_s) > (stored.complete, stored.wall_s)
    if row.record != stored:
        raise PeakwardError(
            f"expected one {row.table} of each id, got a second {row.columns['id']} that differs "
            "from the one stored: one of the two was edited; keep the other"
        )
    return False


def insert(connection: sqlite3.Connection, row: Row) -> bool:
    """Store the row within the open transaction. Returns False where its record is already there.

    A study may be stored again as it grows: a complete one replaces an incomplete one, and a longer
    incomplete one a shorter one.

    Raises:
        PeakwardError: a different record has this id.
    """
    found = connection.execute(
        f"SELECT {RECORD} FROM {row.table} WHERE id = ?", (row.columns["id"],)
    ).fetchone()
    if found is not None and not _is_news(row, from_json(found[0], type(row.record))):
        return False
    names, marks = ", ".join(row.columns), ", ".join("?" * len(row.columns))
    connection.execute(
        f"INSERT OR REPLACE INTO {row.table} ({names}) VALUES ({marks})",
        tuple(row.columns.values()),
    )
    return True
