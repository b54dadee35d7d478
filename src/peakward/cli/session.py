"""What a measuring command holds open: the database, the worker process, the sweep over both."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from peakward.cli.machine import Machine

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep


@contextlib.contextmanager
def sweep(db: str, machine: Machine) -> Iterator["Sweep"]:
    """A sweep that stores what it measures, each case as it ends.

    Raises:
        PeakwardError: a database that cannot be written, is not one of ours, or is being written.
    """
    from peakward.lab.measure.isolated import Workers
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

    with Store.open(Path(db)) as store, Workers() as workers:
        yield Sweep(store, workers, machine.environment)


class Interruption:
    """Remembers a Ctrl-C, which studies turn into an incomplete record, so that it can be told."""

    def __init__(self) -> None:
        self.seen = False
        """Whether there was one."""

    def __enter__(self) -> "Interruption":
        self._before = signal.signal(signal.SIGINT, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def tell(self) -> None:
        """Raise KeyboardInterrupt where there was one, after its record has been shown."""
        if self.seen:
            raise KeyboardInterrupt

    def _heard(self, _signal: int, _frame: FrameType | None) -> NoReturn:
        self.seen = True
        raise KeyboardInterrupt
