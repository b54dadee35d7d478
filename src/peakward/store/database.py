"""The results database, and the studies that users' references find in it."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from peakward.records import check
from peakward.records.calibration import Calibration
from peakward.records.case import Case, LeverCase
from peakward.records.codec import R, from_json
from peakward.records.errors import PeakwardError
from peakward.records.lever import Trial
from peakward.records.measurement import Environment, Measurement, Protocol
from peakward.records.memory import CaseMemory
from peakward.records.profile import CaseProfile
from peakward.records.study import Study
from peakward.store import artefacts
from peakward.store.connection import (
    connect_reader,
    connect_writer,
    has_table,
    last_writer,
    refuse_other_files,
    take_lock,
    told_in_one_line,
)
from peakward.store.rows import (
    CREATED,
    RECORD,
    Row,
    insert,
    key_of_case,
    key_of_protocol,
    now,
    row_of,
)
from peakward.store.take_in import rows_in


class StudyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored study, without its content."""

    id: str
    name: str
    title: str
    started_at: str
    complete: bool


class Store:
    """One open results file: a context manager, for the thread that opened it.

    Every `add_` method is one durable transaction: a record survives a kill once the method has returned, and
    leaves no trace before. Any method may raise PeakwardError where the disk is full or the file damaged.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, held: sqlite3.Connection | None
    ) -> None:
        self._path = path
        self._connection = connection
        self._lock = held

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the database for writing and keep other writers out. It is created where there is none.

        Raises:
            PeakwardError: being written by another run, no database of ours, of a newer schema,
                damaged, or in a place that cannot be written.
        """
        path = check.path(path, "a database").resolve()
        with suppress(FileNotFoundError):
            refuse_other_files(path)
        with told_in_one_line(path):
            held = take_lock(path)
            if held is None:
                raise PeakwardError(
                    f"expected {path} to be free, got one that {last_writer(path)} is writing: "
                    "wait for it to end, or give this run a file of its own with --db"
                )
            try:
                return cls(path, connect_writer(path), held)
            except BaseException:
                held.close()
                raise

    @classmethod
    def open_read_only(cls, path: str | Path) -> Self:
        """Open the database for reading, also beside a writer.

        Raises:
            PeakwardError: no such file, no database of ours, of a newer schema, or damaged.
        """
        path = check.path(path, "a database").resolve()
        try:
            refuse_other_files(path)
        except FileNotFoundError as error:
            raise PeakwardError(
                f"expected a results database at {path}, got no such file: "
                "`peakward run` makes one, --db names another"
            ) from error
        with told_in_one_line(path):
            return cls(path, connect_reader(path), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, so that the next writer can open it."""
        self._connection.close()
        if self._lock is not None:
            self._lock.close()

    def add_measurement(self, measurement: Measurement) -> None:
        """Store a measurement; the same one twice is stored once."""
        self._add([row_of(measurement, stored_at=now())])

    def add_trial(self, trial: Trial) -> None:
        """Store a trial; the same one twice is stored once."""
        self._add([row_of(trial, stored_at=now())])

    def add_calibration(self, calibration: Calibration) -> None:
        """Store a calibration; the same one twice is stored once."""
        self._add([row_of(calibration, stored_at=now())])

    def add_profile(self, profile: CaseProfile) -> None:
        """Store a profile; the same one twice is stored once."""
        self._add([row_of(profile, stored_at=now())])

    def add_memory(self, memory: CaseMemory) -> None:
        """Store a case's recorded memory; the same one twice is stored once."""
        self._add([row_of(memory, stored_at=now())])

    def keep(self, file: Path) -> str:
        """Move a trace or a snapshot beside the database; returns the name to store.

        Raises:
            PeakwardError: as `artefacts.keep` says.
        """
        return artefacts.keep(self._path, file)

    def path_of(self, name: str) -> Path:
        """The path of the kept file with this name.

        Raises:
            PeakwardError: as `artefacts.path_of` says.
        """
        return artefacts.path_of(self._path, name)

    def add_study(self, study: Study) -> None:
        """Store a study, or its grown version."""
        self._add([row_of(study, stored_at=now())])

    def take_in(self, path: Path) -> int:
        """Store the records of another database or of a JSON file; returns how many of them were new.

        A study in a JSON file brings its measurements, trials, profiles, recorded memory and calibration, but
        not the files beside its database. Either all records are stored or none. Doing it twice is harmless,
        because records are known by their ids.

        Raises:
            PeakwardError: the file cannot be read, or holds what is no record of ours.
        """
        return self._add(rows_in(path))

    def measurement(
        self, case: Case, protocol: Protocol, environment_key: str
    ) -> Measurement | None:
        """The latest measurement with a final status.

        Measurements that something other than the case ended do not count, nor do those that timed out sooner
        than this protocol would. The column `final` follows the rule of the version that wrote it; the record
        decides.
        """
        stored = self._each(
            Measurement,
            "measurement WHERE case_key = ? AND protocol_key = ? AND environment_key = ? AND final"
            " ORDER BY created DESC, rowid DESC",
            (key_of_case(case), key_of_protocol(protocol), environment_key),
        )
        return next(
            (each for each in stored if each.final and not _gave_up_sooner(each, protocol)), None
        )

    def trial(
        self, lever: str, base: LeverCase, candidate: LeverCase, environment_key: str
    ) -> Trial | None:
        """The latest trial of the furthest stage: confirmed before screened before refused."""
        return self._first(
            Trial,
            "trial WHERE lever = ? AND base_key = ? AND candidate_key = ? AND environment_key = ?"
            " ORDER BY stage = 'confirmed' DESC, stage = 'screened' DESC, created DESC, rowid DESC",
            (lever, key_of_case(base), key_of_case(candidate), environment_key),
        )

    def trials(self) -> tuple[tuple[str, Trial], ...]:
        """All separately stored trials with their time of storage, oldest first. Screenings are only in their
        studies."""
        with told_in_one_line(self._path):
            found = self._connection.execute(
                f"SELECT {CREATED}, {RECORD} FROM trial ORDER BY created, rowid"
            ).fetchall()
        return tuple((created, from_json(record, Trial)) for created, record in found)

    def environment(self, key: str) -> Environment | None:
        """The environment with this key, from any stored measurement."""
        found = self._first(Measurement, "measurement WHERE environment_key = ?", (key,))
        return None if found is None else found.environment

    def calibration(self, environment_key: str) -> Calibration | None:
        """The latest calibration."""
        return self._first(
            Calibration,
            "calibration WHERE environment_key = ? ORDER BY created DESC, rowid DESC",
            (environment_key,),
        )

    def profile(self, case: Case, n_steps: int, environment_key: str) -> CaseProfile | None:
        """The latest profile of the case with this number of steps."""
        if not has_table(self._connection, "profile"):
            return None
        return self._first(
            CaseProfile,
            "profile WHERE case_key = ? AND n_steps = ? AND environment_key = ?"
            " ORDER BY created DESC, rowid DESC",
            (key_of_case(case), n_steps, environment_key),
        )

    def memory(self, case: Case, environment_key: str) -> CaseMemory | None:
        """The latest recorded memory of the case."""
        if not has_table(self._connection, "case_memory"):
            return None
        return self._first(
            CaseMemory,
            "case_memory WHERE case_key = ? AND environment_key = ?"
            " ORDER BY created DESC, rowid DESC",
            (key_of_case(case), environment_key),
        )

    def studies(self) -> tuple[StudyEntry, ...]:
        """The stored studies, newest first."""
        with told_in_one_line(self._path):
            return entries(self._connection)

    def study(self, ref: str) -> Study:
        """The study with this id, with the only id that begins so, or the newest for "last".

        Raises:
            PeakwardError: no such study, or several.
        """
        id_ = id_of(ref, self.studies(), self._path)
        found = self._first(Study, "study WHERE id = ?", (id_,))
        if (
            found is None
        ):  # Rows are never deleted, but this id has characters that were made printable.
            raise PeakwardError(
                f"expected a study in {self._path}, got one whose id was edited: name another"
            )
        return found

    def _add(self, rows: list[Row]) -> int:
        with told_in_one_line(self._path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            return sum([insert(self._connection, row) for row in rows])

    def _first(self, kind: type[R], rows: str, values: tuple[str | int, ...]) -> R | None:
        """The record of the first of the rows, or None where there is none."""
        return next(self._each(kind, f"{rows} LIMIT 1", values), None)

    def _each(self, kind: type[R], rows: str, values: tuple[str | int, ...]) -> Iterator[R]:
        """The records of the rows, decoded as they are asked for."""
        with told_in_one_line(self._path):
            found = self._connection.execute(f"SELECT {RECORD} FROM {rows}", values).fetchall()
        return (from_json(record, kind) for (record,) in found)


def _gave_up_sooner(stored: Measurement, protocol: Protocol) -> bool:
    return stored.status == "timeout" and stored.protocol.timeout_s < protocol.timeout_s


_N_NAMED = 3
"""The number of ids that an error message offers."""


def entries(connection: sqlite3.Connection) -> tuple[StudyEntry, ...]:
    """All studies, newest first."""
    found = connection.execute(
        f"SELECT id, CAST(name AS TEXT), CAST(title AS TEXT), {CREATED}, complete FROM study"
        " WHERE typeof(id) = 'text' ORDER BY created DESC, rowid DESC"
    )
    return tuple(
        StudyEntry(id=id_, name=name, title=title, started_at=created, complete=bool(complete))
        for id_, name, title, created, complete in found
    )


def id_of(ref: str, known: Sequence[StudyEntry], path: Path) -> str:
    """The full id for `ref` among the entries `known`, newest first.

    Raises:
        PeakwardError: it means none of them, or several.
    """
    if not known:
        raise PeakwardError(
            f"expected a study in {path}, got none stored yet: `peakward run` makes one"
        )
    if ref == "last":
        return known[0].id
    ids = [entry.id for entry in known]
    matching = [ref] if ref in ids else [id_ for id_ in ids if id_.startswith(ref)]
    if len(matching) == 1:
        return matching[0]
    offered = ", ".join((matching or ids)[:_N_NAMED])
    found = f"{len(matching)} that begin so" if matching else "no such one"
    raise PeakwardError(
        f'expected the id of a study in {path}, its unique beginning or "last", got {ref!r}, '
        f"{found}: name one, such as {offered}"
    )
