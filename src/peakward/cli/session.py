"""What a measuring command holds open: the database, the worker process, the sweep over both."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from peakward.cli.machine import Machine
from peakward.cli.watch import Watch
from peakward.records.errors import PeakwardError

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
    from peakward.lab.measure.isolated import Workers
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

    with Store.open(Path(db)) as store, Workers(on_event=watch.on_event) as workers:
        sweep = Sweep(store, workers, machine.environment, on_done=watch.on_done)
        yield Session(store, sweep)
