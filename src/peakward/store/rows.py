"""Records as rows: the columns they are found by, and the record itself as JSON."""

import hashlib
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from peakward.records.calibration import Calibration
from peakward.records.case import Case, case_key
from peakward.records.case_memory import CaseMemory
from peakward.records.codec import as_read_back, from_json, to_json
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Measurement
from peakward.records.profile import CaseProfile
from peakward.records.protocol import Protocol
from peakward.records.study import Study
from peakward.records.trial import Trial

Record = Measurement | Trial | Calibration | CaseProfile | CaseMemory | Study
KINDS: tuple[tuple[str, type[Record]], ...] = (
    ("measurement", Measurement),
    ("trial", Trial),
    ("calibration", Calibration),
    ("profile", CaseProfile),
    ("case_memory", CaseMemory),
    ("study", Study),
)
"""Each table and what its rows hold."""
RECORD = "CAST(record AS BLOB)"
CREATED = "CAST(created AS TEXT)"
"""These columns as they are read: a hand that edits a file may put a value of any type into any column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record, and all columns of its row."""

    table: str
    columns: dict[str, str | int]
    record: Record


def key_of_case(case: Case) -> str:
    """Equal for equal cases."""
    return case_key(as_read_back(case))


def key_of_protocol(protocol: Protocol) -> str:
    """A stable 16-digit name of the protocol's identity, equal for equal ones."""
    encoded = msgspec.json.encode(as_read_back(protocol).identity, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]


def now() -> str:
    """ISO 8601, UTC."""
    return datetime.now(UTC).isoformat()


def _key_columns(record: Record) -> tuple[str, dict[str, str | int]]:
    """The table, and its columns but for the record."""
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
    """The record's row; `stored_at` stands in for a start where the record has none.

    Raises:
        PeakwardError: it could be written but not read back.
    """
    record = as_read_back(record)
    table, keys = _key_columns(record)
    columns = {"created": stored_at, **keys, "record": to_json(record).decode()}
    return Row(table=table, columns=columns, record=record)


def _is_news(row: Row, stored: Record) -> bool:
    """Whether the row should take the place of what is stored under its id."""
    if isinstance(row.record, Study) and isinstance(stored, Study):
        return (row.record.complete, row.record.wall_s) > (stored.complete, stored.wall_s)
    if row.record != stored:
        raise PeakwardError(
            f"expected one {row.table} of each id, got a second {row.columns['id']} that differs "
            "from the one stored: one of the two was edited; keep the other"
        )
    return False


def insert(connection: sqlite3.Connection, row: Row) -> bool:
    """Store the row within the open transaction; False where its record is there already.

    A study may be stored again as it grows: a complete one replaces an incomplete one, a longer
    incomplete one a shorter.

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
