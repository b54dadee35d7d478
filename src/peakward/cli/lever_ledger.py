"""The trials that databases and files of studies hold, oldest first."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from peakward.cli import stored
from peakward.records.errors import PeakwardError
from peakward.records.lever_ledger import LeverLedger
from peakward.records.study import Study
from peakward.tune.lever_ledger import Tried, lever_ledger

UNKNOWN_DEVICE = "a device of which no measurement is stored"


def load(references: Sequence[str], db: str) -> LeverLedger:
    """The ledger of the named databases and JSON files of studies; of `db` where none is named.

    Raises:
        PeakwardError: a name that is no such file.
    """
    places = tuple(references) or (db,)
    tried = [each for place in places for each in _tried(Path(place), named=bool(references))]
    tried.sort(key=lambda each: each[0])
    return lever_ledger((each for _, each in tried), places)


def _tried(path: Path, *, named: bool) -> Iterator[tuple[str, Tried]]:
    """With when it was stored, or its study began."""
    if named and not path.is_file():
        raise PeakwardError(
            f"expected a database or a study's JSON file, got {str(path)!r}, which is no file: "
            "name the files whose trials the ledger is of"
        )
    if not named or stored.is_database(path):
        yield from _in_database(path)
    else:
        yield from _of(stored.load(str(path), ""))


def _in_database(path: Path) -> Iterator[tuple[str, Tried]]:
    from peakward.store.database import Store

    with Store.open_read_only(path) as store:
        for entry in store.studies():
            yield from _of(store.study(entry.id))
        for created, trial in store.trials():
            where = store.environment(trial.environment_key)
            yield created, Tried(trial, where.device_name if where else UNKNOWN_DEVICE)


def _of(study: Study) -> Iterator[tuple[str, Tried]]:
    for trial in study.trials:
        yield study.started_at, Tried(trial, study.environment.device_name)
