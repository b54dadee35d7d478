"""Studies that were stored: found by id in a database, or in a file of their own."""

import os
from pathlib import Path

from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.study import Study

_SQLITE_MAGIC = b"SQLite format 3\0"


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
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
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
