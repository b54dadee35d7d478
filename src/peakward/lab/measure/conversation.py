"""One request put to a worker process, up to its answer or its end. Imports no torch."""

from collections.abc import Callable
from time import monotonic

from peakward.lab.measure import failure, proc
from peakward.lab.measure.interrupts import Interrupts
from peakward.lab.measure.messages import Answer, Event, Failed, Ready, Released, Request
from peakward.lab.measure.process import WorkerDied, WorkerProcess
from peakward.records.measurement import Status

RELEASE_TIMEOUT_S = 60.0
"""For giving back what the request left, once it is answered."""

OnEvent = Callable[[Event], None]


class Conversation:
    """What passes between parent and worker over one request; `last` is the latest event, and `begun_s`
    when the first came, which says that the device is ready."""

    def __init__(self, process: WorkerProcess, interrupts: Interrupts, tell: OnEvent) -> None:
        self._process = process
        self._interrupts = interrupts
        self._tell = tell
        self.last = Event(stage="starting")
        self.begun_s: float | None = None
        self._oom_kills = proc.oom_kills()

    def ask(self, request: Request, deadline_s: float, timeout_s: float) -> Answer:
        """The answer, or the failure that stands for it."""
        try:
            self._process.send(request)
            while monotonic() < deadline_s:
                if self._interrupts.pending:
                    return self._killed("crashed", f"interrupted by Ctrl-C while {self._doing()}")
                reply = self._process.receive(deadline_s - monotonic())
                if isinstance(reply, Event):
                    self.begun_s = self.begun_s or monotonic()
                    self.last = reply
                    self._tell(reply)
                elif reply is not None and not isinstance(reply, Ready | Released):
                    return reply
        except WorkerDied:
            return self._autopsy()
        return self._killed("timeout", f"not done after {timeout_s:g} s, while {self._doing()}")

    def released(self) -> Released | None:
        """What is left after the answer; None where the worker does not say."""
        deadline_s = monotonic() + RELEASE_TIMEOUT_S
        try:
            while monotonic() < deadline_s and not self._interrupts.pending:
                reply = self._process.receive(deadline_s - monotonic())
                if isinstance(reply, Released):
                    return reply
        except WorkerDied:
            pass
        return None

    def _killed(self, status: Status, reason: str) -> Failed:
        self._process.kill()
        return Failed(status=status, reason=reason)

    def _autopsy(self) -> Failed:
        status, reason = failure.of_death(
            self._process.bury(),
            oom_kills_rose=proc.rose(self._oom_kills, proc.oom_kills()),
            stderr=self._process.tail(),
            stage=self._doing(),
        )
        return Failed(status=status, reason=reason)

    def _doing(self) -> str:
        """The last event in words: "timing, 12 steps done"."""
        last = self.last
        steps = f", {last.done} step{'s' * (last.done > 1)} done" if last.done else ""
        return last.stage + ("" if last.turn is None else f" case {last.turn + 1}") + steps
