"""One request put to a worker process, up to its answer or its end. Imports no torch."""

from collections.abc import Callable
from math import inf
from time import monotonic

from peakward.lab.measure import failure, proc
from peakward.lab.measure.interrupts import Interrupts
from peakward.lab.measure.messages import Answer, Event, Failed, Ready, Released, Request
from peakward.lab.measure.process import Garbled, WorkerDied, WorkerProcess
from peakward.records.errors import OutOfTimeError
from peakward.records.measurement import EndedBy, Status

START_TIMEOUT_S = 180.0
"""The limit until torch is imported. Importing takes 3 s, or a minute on a machine with ten times the
work of its cores. It does not count as the request's own time."""
RELEASE_TIMEOUT_S = 60.0
"""The limit for giving back the memory that the request left, once it is answered."""

OnEvent = Callable[[Event], None]


class Conversation:
    """The exchange between parent and worker over one request. `last` is the latest event. `begun_s` is
    the time of the first one, when the device is ready."""

    def __init__(self, process: WorkerProcess, interrupts: Interrupts, tell: OnEvent) -> None:
        self._process = process
        self._interrupts = interrupts
        self._tell = tell
        self.last = Event(stage="starting")
        self.begun_s: float | None = None
        self._oom_kills = proc.oom_kills()

    def ask(self, request: Request, timeout_s: float, left_s: float = inf) -> Answer:
        """The answer, or the failure that stands for it; at most `timeout_s` after the worker is ready.

        Raises:
            OutOfTimeError: `left_s` from now ended first. The worker is ended.
        """
        ends_s = monotonic() + left_s
        ready = self._process.worker_pid is not None
        deadline_s = min(monotonic() + (timeout_s if ready else START_TIMEOUT_S), ends_s)
        try:
            self._process.send(request)
            while monotonic() < deadline_s:
                if self._interrupts.pending:
                    reason = f"interrupted by Ctrl-C while {self._doing()}"
                    return self._killed("crashed", reason, "user")
                reply = self._process.receive(deadline_s - monotonic())
                if isinstance(reply, Ready):
                    ready, deadline_s = True, min(monotonic() + timeout_s, ends_s)
                elif isinstance(reply, Event):
                    self.begun_s = self.begun_s or monotonic()
                    self.last = reply
                    self._tell(reply)
                elif reply is not None and not isinstance(reply, Released):
                    return reply
        except WorkerDied:
            return self._autopsy()
        except Garbled:
            reason = f"wrote what is no answer into the pipe of its answers while {self._doing()}"
            return self._killed("crashed", reason, self._doer)
        if deadline_s == ends_s:
            self._process.kill()
            raise OutOfTimeError(f"its time in the budget ended while {self.last.stage}")
        limit_s = timeout_s if ready else START_TIMEOUT_S
        return self._killed(
            "timeout", f"not done after {limit_s:g} s, while {self._doing()}", self._doer
        )

    def released(self) -> Released | None:
        """The memory that is left after the answer; None where the worker does not say."""
        deadline_s = monotonic() + RELEASE_TIMEOUT_S
        try:
            while monotonic() < deadline_s and not self._interrupts.pending:
                reply = self._process.receive(deadline_s - monotonic())
                if isinstance(reply, Released):
                    return reply
        except (WorkerDied, Garbled):
            pass
        return None

    @property
    def _doer(self) -> EndedBy:
        """The party that acts now: before the first event the worker does nothing of the case."""
        return "outside" if self.begun_s is None else "case"

    def _killed(self, status: Status, reason: str, ended_by: EndedBy) -> Failed:
        self._process.kill()
        return Failed(status=status, reason=reason, ended_by=ended_by)

    def _autopsy(self) -> Failed:
        return failure.of_death(
            self._process.bury(),
            oom_kills_rose=proc.rose(self._oom_kills, proc.oom_kills()),
            stderr=self._process.tail(),
            stage=self._doing(),
            begun=self.begun_s is not None,
        )

    def _doing(self) -> str:
        """The last event in words: "timing, 12 steps done"."""
        last = self.last
        steps = f", {last.done} step{'s' * (last.done > 1)} done" if last.done else ""
        return last.stage + ("" if last.turn is None else f" case {last.turn + 1}") + steps
