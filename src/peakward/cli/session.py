"""What a command that stores its results holds open: the database, the worker process, the sweep."""

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from peakward.cli.machine import Machine
from peakward.cli.watch import Watch
from peakward.records.errors import PeakwardError
from peakward.studies.registry import STUDIES

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

NO_TORCH = "expected torch, without which nothing is measured, got none: run `pip install torch`"


class Session(NamedTuple):
    """The open parts."""

    store: "Store"
    sweep: "Sweep"


@contextlib.contextmanager
def opened(db: str, machine: Machine, watch: Watch) -> Iterator[Session]:
    """A sweep that stores what it measures, each case as it ends.

    Raises:
        PeakwardError: a database that cannot be written, is not one of ours, or is being written;
            or no torch, which the worker process would otherwise miss once for every case.
    """
    if importlib.util.find_spec("torch") is None:
        raise PeakwardError(NO_TORCH)
    with opened_to_compute(db, machine, watch) as session:
        yield session


@contextlib.contextmanager
def opened_to_compute(db: str, machine: Machine, watch: Watch) -> Iterator[Session]:
    """The same for what measures nothing, and so needs no torch.

    Raises:
        PeakwardError: as `opened`, of the database.
    """
    from peakward.lab.measure.isolated import Workers
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

    with Store.open(Path(db)) as store, Workers(on_event=watch.on_event) as workers:
        sweep = Sweep(store, workers, machine.environment, on_done=watch.on_done)
        yield Session(store, sweep)


def for_studies(
    names: Iterable[str], db: str, machine: Machine, watch: Watch
) -> AbstractContextManager[Session]:
    """What these studies need: `opened`, or `opened_to_compute` where none of them measures.

    Raises:
        PeakwardError: as they.
    """
    measuring = any(STUDIES[name].measures != "nothing" for name in names)
    return (opened if measuring else opened_to_compute)(db, machine, watch)
