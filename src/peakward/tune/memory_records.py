"""Finds what a case's memory holds: from the store, or by recording and analysing two steps."""

import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.memory import CaseMemory, MemoryMarks, StepClock
from peakward.report.cases import label

if TYPE_CHECKING:
    from peakward.lab.measure.isolated import Workers
    from peakward.store.database import Store
    from peakward.traces.memory.case_memory import Recorded
    from peakward.traces.memory.memory import Memory

NOT_RECORDED = "Memory not recorded: "
"""How the note begins that says why."""


class NotRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """Why a case's memory was not recorded."""

    case: ModelCase
    reason: str
    interrupted: bool = False
    """Whether Ctrl-C ended it: the same command tries again."""

    @property
    def note(self) -> str:
        """For a reader."""
        return f"{NOT_RECORDED}{label(self.case)}: {self.reason}."


class MemoryRecorder:
    """Records cases of one machine, each once: what the store has is not run again."""

    def __init__(self, workers: "Workers", store: "Store", environment_key: str) -> None:
        self._workers, self._store, self._key = workers, store, environment_key

    def record(self, case: ModelCase, *, timeout_s: float) -> CaseMemory | NotRecorded:
        """Returns the stored recording or makes one, whose snapshot is kept beside the database.

        A failure is not stored: the next run tries again.

        Raises:
            KeyboardInterrupt: Ctrl-C came twice; what was recorded is stored.
        """
        found: CaseMemory | NotRecorded | None = self._store.memory(case, self._key)
        if found is None:
            try:
                found = self._made(case, timeout_s)
            except PeakwardError as error:
                found = NotRecorded(case=case, reason=str(error))
            self._workers.raise_if_stopping()
        return found

    def _made(self, case: ModelCase, timeout_s: float) -> CaseMemory | NotRecorded:
        from peakward.lab.measure.messages import Failed
        from peakward.traces.memory.case_memory import PURPOSES, recorded
        from peakward.traces.memory.memory import memory

        with tempfile.TemporaryDirectory(prefix="peakward-") as scratch:
            path = Path(scratch) / "memory.pickle.gz"
            answer = self._workers.record_memory(case, path, timeout_s=timeout_s)
            if isinstance(answer, Failed):
                stopped = answer.ended_by == "user"
                reason = answer.reason if stopped else f"{answer.status}: {answer.reason}"
                return NotRecorded(case=case, reason=reason, interrupted=stopped)
            name = self._store.keep(path)
            trace = None if answer.trace is None else self._store.keep(Path(answer.trace))
        snapshot = memory(self._store.path_of(name))
        step = recorded(snapshot, answer.marks, case.device)
        clock, not_joined = self._clock(snapshot, answer.marks, step, trace)
        found = CaseMemory(
            id=uuid.uuid4().hex,
            case=case,
            environment_key=self._key,
            snapshot=name,
            peak_bytes=step.peak_bytes,
            counted_peak_bytes=answer.marks.peak_allocated_bytes,
            reserved_bytes=step.reserved_bytes,
            phases=step.phases,
            purposes=PURPOSES,
            timeline=step.timeline,
            modules=step.modules,
            largest=step.largest,
            clock=clock,
            not_joined=not_joined,
        )
        self._store.add_memory(found)
        return found

    def _clock(
        self, snapshot: "Memory", marks: MemoryMarks, step: "Recorded", trace: str | None
    ) -> tuple[StepClock | None, str | None]:
        """The step on its kernels' clock, or why there is none; neither where it was not traced."""
        from peakward.traces.memory.step_clock import step_clock
        from peakward.traces.readers import torch_allocations
        from peakward.traces.trace import Trace

        if trace is None:
            return None, None
        path = self._store.path_of(trace)
        try:
            seen = torch_allocations.read(path)
            return step_clock(snapshot, marks, step, Trace.open(path), seen), None
        except PeakwardError as error:
            return None, str(error)
