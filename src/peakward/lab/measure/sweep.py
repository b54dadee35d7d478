"""Measuring many cases, each once: what the store has is not run again. Imports no torch."""

from collections.abc import Callable, Sequence
from typing import Protocol as Interface

from peakward.lab.measure.isolated import Workers
from peakward.records.case import Case
from peakward.records.environment import Environment
from peakward.records.measurement import Measurement
from peakward.records.protocol import Protocol

OnDone = Callable[[Measurement], None]


class Results(Interface):
    """The part of the store that a sweep needs."""

    def measurement(
        self, case: Case, protocol: Protocol, environment_key: str
    ) -> Measurement | None:
        """The latest final result."""

    def add_measurement(self, measurement: Measurement) -> None:
        """Store a result, durably, before returning."""


def ignore(_measurement: Measurement) -> None:
    """For a caller who shows no progress."""


class Sweep:
    """Cases measured by `workers` into `store`, resumable: killed at any moment, a second run of the
    same cases takes from the store what the first had stored."""

    def __init__(
        self,
        store: Results,
        workers: Workers,
        environment: Environment,
        on_done: OnDone = ignore,
    ) -> None:
        self.store = store
        self.workers = workers
        self.environment = environment
        self._on_done = on_done

    def measure(self, case: Case, protocol: Protocol) -> Measurement:
        """The stored result of the case, or else a new one, stored at once.

        Raises:
            KeyboardInterrupt: Ctrl-C came twice; what was measured is stored.
        """
        found = self.store.measurement(case, protocol, self._environment(case).key)
        if found is None:
            found = self.workers.measure(case, protocol)
            self.store.add_measurement(found)
            self.workers.raise_if_stopping()
        self._on_done(found)
        return found

    def _environment(self, case: Case) -> Environment:
        """Where it runs: a piece of code may have the CPU beside a GPU."""
        here = self.environment
        return here if case.device == here.device_type else self.workers.environment(case.device)

    def measure_all(self, planned: Sequence[tuple[Case, Protocol]]) -> tuple[Measurement, ...]:
        """Each in turn; a failing case is a result like any other."""
        return tuple(self.measure(case, protocol) for case, protocol in planned)
