"""Finds what was stored: studies by id in a database, or in a file of their own, and the trials in them."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.study import Study
from peakward.store.connection import SQLITE_MAGIC

if TYPE_CHECKING:
    from peakward.records.lever import LeverLedger
    from peakward.tune.lever_ledger import Tried

UNKNOWN_DEVICE = "a device of which no measurement is stored"


def load(reference: str, db: str) -> Study:
    """The study that a word of the command line means.

    It is a file (`--json` output, or a database: then its last study), "file.db:ID", or an id, the
    unique beginning of one, or "last" in the database `db`.

    Raises:
        PeakwardError: no such study, or a file that holds none.
    """
    path = Path(reference)
    if path.is_file():
        return _from_file(path)
    file, colon, study_id = reference.rpartition(":")
    if colon and Path(file).is_file():
        return _from_database(Path(file), study_id)
    if "." in reference or os.sep in reference:
        raise PeakwardError(
            f"expected a study, got {reference!r}, which is no file and cannot be an id: name a JSON file, "
            "a database, FILE.db:ID, or an id of --db"
        )
    return _from_database(Path(db), reference)


def is_database(path: Path) -> bool:
    """Whether the file is a database, and so no JSON.

    Raises:
        PeakwardError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError as error:
        raise PeakwardError(f"expected a readable file, got {path}: {error.strerror}") from error


def _from_file(path: Path) -> Study:
    return _from_database(path, "last") if is_database(path) else _from_json(path)


def _from_json(path: Path) -> Study:
    try:
        return codec.from_json(path.read_bytes(), Study)
    except OSError as error:
        raise PeakwardError(f"expected a readable file, got {path}: {error.strerror}") from error
    except PeakwardError as error:
        raise PeakwardError(f"{path}: {error}") from error


def _from_database(path: Path, reference: str) -> Study:
    from peakward.store.database import Store

    with Store.open_read_only(path) as store:
        return store.study(reference)


def lever_ledger(references: Sequence[str], db: str) -> "LeverLedger":
    """The ledger of the named databases and JSON files of studies; of `db` where none is named.

    Raises:
        PeakwardError: a name that is no such file.
    """
    # Here, since it loads what makes trials, which no other report needs.
    from peakward.tune.lever_ledger import lever_ledger as ledger_of

    places = tuple(references) or (db,)
    tried = [each for place in places for each in _tried(Path(place), named=bool(references))]
    tried.sort(key=lambda each: each[0])
    return ledger_of((each for _, each in tried), places)


def _tried(path: Path, *, named: bool) -> Iterator[tuple[str, "Tried"]]:
    """With when it was stored, or its study began."""
    if named and not path.is_file():
        raise PeakwardError(
            f"expected a database or a study's JSON file, got {str(path)!r}, which is no file: "
            "name the files whose trials the ledger is of"
        )
    if not named or is_database(path):
        yield from _in_database(path)
    else:
        yield from _of(load(str(path), ""))


def _in_database(path: Path) -> Iterator[tuple[str, "Tried"]]:
    from peakward.store.database import Store
    from peakward.tune.lever_ledger import Tried

    with Store.open_read_only(path) as store:
        for entry in store.studies():
            yield from _of(store.study(entry.id))
        for created, trial in store.trials():
            where = store.environment(trial.environment_key)
            yield created, Tried(trial, where.device_name if where else UNKNOWN_DEVICE)


def _of(study: Study) -> Iterator[tuple[str, "Tried"]]:
    from peakward.tune.lever_ledger import Tried

    for trial in study.trials:
        yield study.started_at, Tried(trial, study.environment.device_name)
