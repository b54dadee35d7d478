"""Measures many cases, each once: stored cases are not run again. Imports no torch."""

from collections.abc import Callable, Sequence
from typing import Protocol as Interface

from peakward.lab.measure import assemble
from peakward.lab.measure.isolated import Workers
from peakward.lab.measure.messages import Checked, Failed
from peakward.records.case import Case, DeviceType, ModuleCase, Workload
from peakward.records.measurement import Environment, Measurement, Protocol

OnDone = Callable[[Measurement], None]


class Results(Interface):
    """The part of the store that a sweep needs."""

    def measurement(
        self, case: Case, protocol: Protocol, environment_key: str
    ) -> Measurement | None:
        """The latest final result."""

    def add_measurement(self, measurement: Measurement) -> None:
        """Stores a result, durably, before returning."""


def ignore(_measurement: Measurement) -> None:
    """Ignores the progress."""


class Sweep:
    """Measures cases by `workers` into `store`. It is resumable: after a kill at any moment, a second
    run of the same cases takes the stored ones from the store."""

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
        self._checked: dict[tuple[str, str, Workload, DeviceType], Failed | Checked] = {}

    def known(self, case: Case, protocol: Protocol) -> Measurement | None:
        """The stored result of the case."""
        return self.store.measurement(case, protocol, self._environment(case).key)

    def check(self, case: ModuleCase, timeout_s: float) -> Failed | Checked:
        """Checks a user's module once. Returns what is known of it, or the failure that it has in every
        configuration.

        Raises:
            PeakwardError: Its source cannot be found.
            KeyboardInterrupt: Ctrl-C.
        """
        key = (case.source, case.fingerprint, case.workload, case.device)
        if key not in self._checked:
            self._checked[key] = self.workers.check(case, timeout_s)
        return self._checked[key]

    def measure(self, case: Case, protocol: Protocol) -> Measurement:
        """The stored result of the case, or else a new one, stored at once.

        Raises:
            KeyboardInterrupt: Ctrl-C came twice; all measured results are stored.
        """
        found = self.known(case, protocol)
        if found is None:
            found = self._measured(case, protocol)
            self.store.add_measurement(found)
            self.workers.raise_if_stopping()
        self._on_done(found)
        return found

    def _measured(self, case: Case, protocol: Protocol) -> Measurement:
        watch = assemble.Stopwatch()
        found = self.check(case, protocol.timeout_s) if isinstance(case, ModuleCase) else None
        if isinstance(found, Failed):
            return assemble.measurement(case, protocol, self._environment(case), watch, found)
        return self.workers.measure(case, protocol)

    def _environment(self, case: Case) -> Environment:
        """The environment of the case: a piece of code may run on the CPU beside a GPU."""
        here = self.environment
        return here if case.device == here.device_type else self.workers.environment(case.device)

    def measure_all(self, planned: Sequence[tuple[Case, Protocol]]) -> tuple[Measurement, ...]:
        """The results of the cases in turn; a failing case is a result like any other."""
        return tuple(self.measure(case, protocol) for case, protocol in planned)
