"""Holds open what a job needs that stores its results: the database, the worker process, the sweep."""

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from peakward.api.machine import Machine
from peakward.records.case import Case, LeverCase, ModuleCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Measurement, Protocol

if TYPE_CHECKING:
    from peakward.lab.measure.isolated import Workers
    from peakward.lab.measure.messages import Checked, Event
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

DB = "peakward.db"
LEAST_CHECK_S = 120.0
"""For building a module and three of its steps, under a budget that is shorter than a large model's start."""
NO_TORCH = "expected torch, without which nothing is measured, got none: run `pip install torch`"


class Observer:
    """Hears what the lab does. This one keeps quiet."""

    def on_event(self, event: "Event") -> None:
        """The worker entered a stage, or came further in one."""

    def on_stage(self, doing: str) -> None:
        """Something else is done now."""

    def on_done(self, _measurement: Measurement) -> None:
        """A case has been measured, or found in the store."""


QUIET = Observer()


class Session(NamedTuple):
    """The open parts."""

    store: "Store"
    sweep: "Sweep"


def expect_torch() -> None:
    """Refuse to measure where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise PeakwardError(NO_TORCH)


@contextlib.contextmanager
def opened(db: Path, machine: Machine, observer: Observer) -> Iterator[Session]:
    """A sweep that stores what it measures, each case as it ends.

    Raises:
        PeakwardError: a database that cannot be written, is not one of ours, or is being written;
            or no torch, which the worker process would otherwise miss once for every case.
    """
    expect_torch()
    with opened_to_compute(db, machine, observer) as session:
        yield session


@contextlib.contextmanager
def opened_to_compute(db: Path, machine: Machine, observer: Observer) -> Iterator[Session]:
    """The same for what measures nothing, and so needs no torch.

    Raises:
        PeakwardError: as `opened`, of the database.
    """
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

    with Store.open(db) as store, workers(observer) as measuring:
        sweep = Sweep(store, measuring, machine.environment, on_done=observer.on_done)
        yield Session(store, sweep)


def workers(observer: Observer = QUIET) -> "Workers":
    """Worker processes, and jobs of ranks."""
    from peakward.lab.measure.isolated import Workers
    from peakward.lab.parallel.measured import measure

    return Workers(on_event=observer.on_event, ranks=measure)


def for_studies(
    names: Iterable[str], db: Path, machine: Machine, observer: Observer
) -> AbstractContextManager[Session]:
    """Opens what these studies need: `opened`, or `opened_to_compute` where none of them measures.

    Raises:
        PeakwardError: as they.
    """
    from peakward.studies.registry import STUDIES

    measuring = any(STUDIES[name].measures != "nothing" for name in names)
    return (opened if measuring else opened_to_compute)(db, machine, observer)


def check_modules(planned: Iterable[tuple[Case, Protocol]], sweep: "Sweep") -> None:
    """Build each user's module that is to be measured once and run it as it is, before anything is
    measured. What is wrong with one is the result of its cases.

    Raises:
        PeakwardError: one whose source cannot be found.
    """
    for case, protocol in planned:
        if isinstance(case, ModuleCase) and sweep.known(case, protocol) is None:
            sweep.check(case, protocol.timeout_s)


def expect_sound(case: LeverCase, sweep: "Sweep", budget_s: float) -> "Checked | None":
    """The same for the one module of an investigation, which would have nothing to tell without it.

    Returns:
        The state in which a factory's module comes; None where that is not known.

    Raises:
        PeakwardError: it cannot be found, built or run within the budget, with what is wrong.
    """
    if not isinstance(case, ModuleCase):
        return None
    from peakward.lab.measure.messages import Checked

    found = sweep.check(case, max(budget_s, LEAST_CHECK_S))
    if isinstance(found, Checked):
        return found
    if found.status == "timeout":
        raise PeakwardError(
            f"expected three steps of {case.source} as it is, got {found.reason}: give a longer --budget, "
            "or mend what hangs"
        )
    if found.status == "invalid":
        raise PeakwardError(found.reason)
    return None
