"""Reads records from a file of another machine or run."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from peakward.records.calibration import Calibration
from peakward.records.codec import from_json
from peakward.records.errors import PeakwardError
from peakward.records.lever import Trial
from peakward.records.measurement import Measurement
from peakward.records.memory import CaseMemory
from peakward.records.profile import CaseProfile
from peakward.records.study import Study
from peakward.store.connection import (
    SQLITE_MAGIC,
    connect_reader,
    has_table,
    refuse_other_files,
    told_in_one_line,
)
from peakward.store.rows import CREATED, KINDS, RECORD, Record, Row, now, row_of

_TOLD_BY: tuple[tuple[str, type[Record]], ...] = (
    ("measurements", Study),
    ("lever", Trial),
    ("matmul", Calibration),
    ("protocol", Measurement),
    ("profiled_step_s", CaseProfile),
    ("counted_peak_bytes", CaseMemory),
)
"""For each type of record a field that no other type has. It tells the type of a JSON file."""


class _Fields(msgspec.Struct):
    record: dict[str, msgspec.Raw]


def rows_in(path: Path) -> list[Row]:
    """Every record of a database or of a JSON file, decoded. A study's file also brings the records in it.

    Raises:
        PeakwardError: unreadable, neither of the two, or with a record that is not whole.
    """
    try:
        with path.open("rb") as file:
            is_database = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
        data = b"" if is_database else path.read_bytes()
    except OSError as error:
        raise PeakwardError(
            f'expected a file of records at {path}, got "{error.strerror}": check the path'
        ) from error
    return _rows_in_database(path.resolve()) if is_database else _rows_in_json(data, path)


def _rows_in_json(data: bytes, path: Path) -> list[Row]:
    try:
        fields = msgspec.json.decode(data, type=_Fields).record
    except (msgspec.DecodeError, RecursionError):
        fields = {}
    # Anything that is no record is left to the codec, which reports it.
    kind = next((kind for field, kind in _TOLD_BY if field in fields), Study)
    try:
        record = from_json(data, kind)
    except PeakwardError as error:
        raise PeakwardError(f"{path}: {error}") from error
    stored_at = now()
    return [row_of(part, stored_at=stored_at) for part in _parts(record)]


def _parts(record: Record) -> Iterator[Record]:
    yield record
    if isinstance(record, Study):
        yield from record.measurements
        yield from record.trials
        yield from record.profiles
        yield from record.memory
        if record.calibration is not None:
            yield record.calibration


def _rows_in_database(path: Path) -> list[Row]:
    refuse_other_files(path)
    with told_in_one_line(path):
        connection = connect_reader(path)
        try:
            return list(_rows_of(connection))
        finally:
            connection.close()


def _rows_of(connection: sqlite3.Connection) -> Iterator[Row]:
    for table, kind in KINDS:
        if not has_table(connection, table):
            continue
        for data, created in connection.execute(f"SELECT {RECORD}, {CREATED} FROM {table}"):
            yield row_of(from_json(data, kind), stored_at=created)
