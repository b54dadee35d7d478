"""Where a case's time goes: from the store, or some steps profiled, kept and analysed."""

import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from peakward.hardware import devices
from peakward.records.case import LeverCase, OperatorCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Measurement
from peakward.records.profile import CaseProfile
from peakward.report.cases import label
from peakward.report.format import format_duration
from peakward.tune.costs import Costs
from peakward.tune.ledger import Budget

if TYPE_CHECKING:
    from peakward.lab.measure.isolated import Workers
    from peakward.store.database import Store

ProfiledCase = LeverCase | OperatorCase
N_STEPS = 3
TIMEOUT_S = 600.0
NOT_PROFILED = "Not profiled: "
"""How the note begins that says why."""


class NotProfiled(msgspec.Struct, frozen=True, kw_only=True):
    """Why a case has no profile."""

    case: ProfiledCase
    reason: str
    interrupted: bool = False
    """Whether Ctrl-C ended it: the same command tries again."""

    @property
    def note(self) -> str:
        """For a reader."""
        return f"{NOT_PROFILED}{label(self.case)}: {self.reason}."


class Profiles(msgspec.Struct, frozen=True, kw_only=True):
    """The profiles of several cases, and notes on those that have none."""

    made: tuple[CaseProfile, ...] = ()
    notes: tuple[str, ...] = ()
    """Why a case has no profile, a note each."""
    interrupted: bool = False


class Profiler:
    """Profiles cases of one machine, each once: what the store has is not run again."""

    def __init__(self, workers: "Workers", store: "Store", environment_key: str) -> None:
        self._workers, self._store, self._key = workers, store, environment_key
        self._failed: dict[ProfiledCase, NotProfiled] = {}

    def known(self, case: ProfiledCase) -> CaseProfile | None:
        """From the store alone."""
        return self._store.profile(case, N_STEPS, self._key)

    def settled(self, case: ProfiledCase) -> bool:
        """Whether nothing more would be run for it."""
        return case in self._failed or self.known(case) is not None

    def profile(
        self, case: ProfiledCase, *, timeout_s: float = TIMEOUT_S
    ) -> CaseProfile | NotProfiled:
        """The stored profile, or a new one, its trace kept beside the database.

        A failure is not stored: the next run tries again, this one does not.

        Raises:
            KeyboardInterrupt: Ctrl-C came twice; what was profiled is stored.
        """
        found: CaseProfile | NotProfiled | None = self.known(case) or self._failed.get(case)
        if found is None:
            try:
                found = self._made(case, timeout_s)
            except PeakwardError as error:
                found = NotProfiled(case=case, reason=str(error))
            self._workers.raise_if_stopping()
        if isinstance(found, NotProfiled):
            self._failed[case] = found
        return found

    def _made(self, case: ProfiledCase, timeout_s: float) -> CaseProfile | NotProfiled:
        from peakward.lab.measure.messages import Failed
        from peakward.traces.trace import Trace

        with tempfile.TemporaryDirectory(prefix="peakward-") as scratch:
            path = Path(scratch) / "trace.json.gz"
            answer = self._workers.profile(case, path, n_steps=N_STEPS, timeout_s=timeout_s)
            if isinstance(answer, Failed):
                stopped = answer.ended_by == "user"
                reason = answer.reason if stopped else f"{answer.status}: {answer.reason}"
                return NotProfiled(case=case, reason=reason, interrupted=stopped)
            name = self._store.keep(path)
        trace = Trace.open(self._store.path_of(name))
        device = devices.match_all((each.name, each.memory_bytes) for each in trace.table.devices)
        found = CaseProfile(
            id=uuid.uuid4().hex,
            case=case,
            environment_key=self._key,
            n_steps=answer.n_steps,
            profiled_step_s=answer.profiled_step_s,
            trace=name,
            profile=trace.profile(device=device),
        )
        self._store.add_profile(found)
        return found


def affordable(
    measured: Sequence[Measurement],
    profiler: Profiler,
    *,
    budget: Budget,
    costs: Costs,
    on_stage: Callable[[str], None],
) -> Profiles:
    """Those of the measured cases that ran and fit into what is left of the budget.

    The last, which is the best, goes first; they come back in the order in which they were measured.
    """
    made: list[CaseProfile] = []
    notes: list[str] = []
    for each in reversed(measured):
        if each.status != "ok" or not isinstance(each.case, LeverCase):
            continue
        cost_s = 0.0 if profiler.settled(each.case) else costs.profile_s(each.case)
        if not budget.allows(cost_s):
            about = format_duration(cost_s)
            left = f"about {about} did not fit into what was left of {budget.total_s:.0f} s"
            notes.append(NotProfiled(case=each.case, reason=left).note)
            continue
        on_stage(f"profiling {label(each.case)}")
        found = profiler.profile(each.case)
        if isinstance(found, CaseProfile):
            made.append(found)
            continue
        notes.append(found.note)
        if found.interrupted:
            return Profiles(made=tuple(reversed(made)), notes=tuple(notes), interrupted=True)
    return Profiles(made=tuple(reversed(made)), notes=tuple(notes))
