"""The isolated runner: it measures cases in a worker process that may be lost. Imports no torch.

A worker is started when first needed. It is reused while its work ended well and left nothing behind,
and replaced otherwise. Whatever happens to it becomes a status with a reason.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from math import inf
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from peakward.lab.measure import assemble, nvml, probe, proc
from peakward.lab.measure.messages import (
    Answer,
    Calibrated,
    CalibrateRequest,
    Captured,
    CaptureRequest,
    Checked,
    CheckRequest,
    Event,
    Failed,
    FirstStepProfiled,
    FirstStepRequest,
    Measured,
    MeasureRequest,
    MemoryRecorded,
    MemoryRequest,
    NumericsChecked,
    NumericsRequest,
    Profiled,
    ProfileRequest,
    RatesMeasured,
    RatesRequest,
    Request,
    TurnsRequest,
    TurnsTimed,
)
from peakward.lab.measure.process import (
    START_TIMEOUT_S,
    Conversation,
    Garbled,
    Interrupts,
    OnEvent,
    WorkerDied,
    WorkerProcess,
    written_beside,
)
from peakward.records.calibration import Absence, Calibration, Rates, Subject
from peakward.records.case import (
    Case,
    CollectivesCase,
    DeviceType,
    LayoutCase,
    LeverCase,
    ModelCase,
    ModuleCase,
    OperatorCase,
    RanksCase,
    StepCase,
)
from peakward.records.errors import OutOfTimeError, PeakwardError, SourceError
from peakward.records.lever import Claim, NumericsVerdict
from peakward.records.measurement import Environment, FirstStep, Measurement, Protocol
from peakward.records.op_graph import ModuleCapture

WORKER = (sys.executable, "-P", "-m", "peakward.lab.measure.worker")
"""-P: a file in the working directory does not hide a module of torch's."""
TIMEOUT_S = 600.0
"""The time limit of a request without a protocol."""
CALIBRATE_TIMEOUT_S = 180.0
QUIET_S = 2.0
"""NVML's utilisation looks back up to a second: after this time it shows nothing of our own work."""


def ignore(_event: Event) -> None:
    """Ignores the progress."""


RunRanks = Callable[[RanksCase, Protocol, float, Callable[[], bool]], Measured | Failed]
"""Answers a case of several ranks within so many seconds, unless the user ends it (`lab/parallel`)."""


class Ended(NamedTuple):
    """The end of a request, and which of several cases was last reported."""

    answer: Answer
    turn: int | None


class Workers:
    """Runs one worker at a time, for as long as the `with` block lasts.

    Ctrl-C while a case runs ends only that case (status `crashed`, ended by the user). A second one
    within two seconds ends the run: the next call, or `raise_if_stopping`, raises KeyboardInterrupt.
    """

    rounds = "processes"
    """The name of the rounds of a confirmation."""
    profiles_apart = True
    """Whether timing never happens in a process that a profiler was attached to."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about what could not be isolated."""
        return ()

    @property
    def start_s(self) -> float | None:
        """The seconds until the latest worker had imported torch and its device was ready; None before
        one."""
        return self._start_s

    def __init__(
        self,
        *,
        argv: Sequence[str] = WORKER,
        on_event: OnEvent = ignore,
        ranks: RunRanks | None = None,
    ) -> None:
        self._argv = argv
        self._ranks = ranks
        self._on_event = on_event
        self.left_s: Callable[[], float] = lambda: inf
        """The time that a request which begins now may take. A request that has not ended by then is
        ended, and is not a result."""
        self._interrupts = Interrupts()
        self._process: WorkerProcess | None = None
        self._spares: list[WorkerProcess] = []
        """Processes that have imported torch and have touched no device."""
        self._start_s: float | None = None
        self._attached = False
        """Whether a profiler is attached to the worker."""
        self._held_bytes = 0
        self._quiet_since_s = 0.0
        self._scratch = ExitStack()
        self._environments: dict[DeviceType, Environment] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        while self._spares:
            self._spares.pop().kill()

    @property
    def n_at_once(self) -> int:
        """How many workers may start at the same time: with half of the cores each takes as long as alone."""
        return max(1, len(proc.cores()) // 2)

    @property
    def n_prepared(self) -> int:
        """How many processes are there, or on their way, for the next times that a new worker is needed."""
        return len(self._spares)

    def prepare(self, n: int) -> None:
        """Starts processes at once for the next `n` times that a new worker is needed, and does not wait for
        them: `turns` does, so that no import disturbs what is timed there.

        Of ten seconds that a worker takes to start on an H200's host nine are imports, one after another
        in each process. They pass while numbers are checked or a profile is taken.
        """
        self._spares = [each for each in self._spares if not each.has_ended]
        with suppress(OSError):  # Whoever needs the process starts it, and says what is wrong.
            while len(self._spares) < min(n, self.n_at_once):
                self._spares.append(WorkerProcess(self._argv, self._environ()))

    def _settle_spares(self) -> None:
        """Waits until the spare processes have imported torch."""
        ends_s = monotonic() + min(START_TIMEOUT_S, self.left_s())
        for spare in self._spares:
            with suppress(WorkerDied, Garbled):
                while spare.worker_pid is None and monotonic() < ends_s:
                    spare.receive(ends_s - monotonic())

    def close(self) -> None:
        """Ends the worker. The next request starts a new one, or takes one that `prepare` started."""
        if self._process is not None:
            self._process.kill()
            self._process = None
        self._attached = False
        self._held_bytes = 0
        self._scratch.close()

    def raise_if_stopping(self) -> None:
        """Raises KeyboardInterrupt where Ctrl-C came twice; it is called once the work so far is
        stored."""
        self._interrupts.raise_if_stopping()

    def measure(
        self, case: Case, protocol: Protocol, *, on_event: OnEvent | None = None
    ) -> Measurement:
        """Measures a case. A failure of any kind is a status of the measurement.

        Raises:
            PeakwardError: A step case, which only exists in the process that made it, or a case on a
            device that does not exist here.
        """
        self._expect_buildable(case)
        if isinstance(case, CollectivesCase | LayoutCase):
            return self._measure_ranks(case, protocol)
        watch = assemble.Stopwatch()
        environment = self.environment(case.device)
        doubt = self._busy_reason(case.device)
        request = MeasureRequest(case=case, protocol=protocol)
        ended = self._ask(
            request, protocol.timeout_s, fresh=protocol.fresh_process, on_event=on_event
        )
        answer = ended.answer
        assert isinstance(answer, Measured | Failed)
        return assemble.measurement(
            case,
            protocol,
            environment,
            watch,
            answer,
            doubts=() if doubt is None else (doubt,),
            notes=self.notes,
        )

    def _measure_ranks(self, case: RanksCase, protocol: Protocol) -> Measurement:
        """Has a job of ranks measure it, while no worker holds the device."""
        if self._ranks is None:
            raise PeakwardError("expected a runner of ranks, got none: open `api.session.workers`")
        self._interrupts.raise_if_stopping()
        watch, environment = assemble.Stopwatch(), self.environment(case.device)
        self.close()
        doubt = self._busy_reason(case.device)
        self._on_event(Event(stage="starting"))
        timeout_s = min(protocol.timeout_s, self._expect_time())
        with self._interrupts:
            answer = self._ranks(case, protocol, timeout_s, lambda: self._interrupts.pending)
        if isinstance(answer, Failed) and answer.status == "timeout":
            self._expect_time()
        self._quiet_since_s = monotonic()
        doubts = () if doubt is None else (doubt,)
        return assemble.measurement(case, protocol, environment, watch, answer, doubts=doubts)

    def _expect_buildable(self, case: Case) -> None:
        """
        Raises:
            PeakwardError: what is asked cannot be built where it would be answered.
        """
        if isinstance(case, StepCase):
            raise PeakwardError(
                f"expected a case that can be built elsewhere, got the live step {case.name!r}: "
                "use measure_step"
            )

    def turns(
        self,
        cases: Sequence[LeverCase],
        protocol: Protocol,
        *,
        on_event: OnEvent | None = None,
    ) -> TurnsTimed:
        """Times cases one after another in one process, with one in memory at a time.

        If one of them fails, the answer has its status and no times.
        """
        request = TurnsRequest(cases=tuple(cases), protocol=protocol)
        fresh = protocol.fresh_process
        timeout_s = protocol.timeout_s * len(request.cases)
        self._settle_spares()
        ended = self._ask(request, timeout_s, fresh=fresh, on_event=on_event)
        if isinstance(ended.answer, Failed):
            failed = ended.answer
            return TurnsTimed(
                status=failed.status,
                reason=failed.reason,
                failed=ended.turn,
                ended_by=failed.ended_by,
            )
        assert isinstance(ended.answer, TurnsTimed)
        return ended.answer

    def numerics(self, claims: Sequence[Claim]) -> tuple[NumericsVerdict, ...]:
        """The verdicts whether candidates of one model and workload compute what their classes promise;
        "not computed" on a failure. Where several are asked together and one fails, each is asked alone.

        Raises:
            KeyboardInterrupt: Ctrl-C, which would otherwise pass for a verdict on the candidate.
        """
        answer = self._ask(NumericsRequest(claims=tuple(claims)), TIMEOUT_S).answer
        if not isinstance(answer, Failed):
            assert isinstance(answer, NumericsChecked)
            return answer.verdicts
        _raise_if_interrupted(answer)
        if len(claims) > 1:
            return tuple(verdict for claim in claims for verdict in self.numerics((claim,)))
        reason = f"{answer.status}: {answer.reason}"
        return tuple(
            NumericsVerdict(declared=claim.declared, verdict="not computed", reason=reason)
            for claim in claims
        )

    def check(self, case: ModuleCase, timeout_s: float = TIMEOUT_S) -> Failed | Checked:
        """Builds the module and runs its step, before any lever and not compiled. Returns what is known of
        it, or the failure that it has in every configuration; running out of memory is not one.

        Raises:
            PeakwardError: The source or the device does not exist here.
            KeyboardInterrupt: Ctrl-C.
        """
        self.environment(case.device)
        answer = self._ask(CheckRequest(case=case), timeout_s).answer
        if case.device == "cpu":
            # A CPU's peak is the growth of resident memory: after the same steps it would be next to nothing.
            self.close()
        if isinstance(answer, Failed):
            _raise_if_interrupted(answer)
            says_nothing = answer.status == "oom" or answer.ended_by == "outside"
            return Checked() if says_nothing else answer
        assert isinstance(answer, Checked)
        if answer.missing is not None:
            raise SourceError(answer.missing)
        return answer

    def capture(self, case: ModuleCase) -> ModuleCapture:
        """The operators of one step of the case's module, for a prediction; nothing is computed.

        Raises:
            PeakwardError: A setting that a capture does not see, a module whose operators depend on
            values, or a failed capture.
            KeyboardInterrupt: Ctrl-C.
        """
        answer = self._ask(CaptureRequest(case=case), TIMEOUT_S).answer
        if isinstance(answer, Failed):
            _raise_if_interrupted(answer)
            said = (
                answer.reason if answer.status == "invalid" else f"{answer.status}: {answer.reason}"
            )
            raise PeakwardError(said)
        assert isinstance(answer, Captured)
        return answer.capture

    def calibrate(self, device_type: DeviceType) -> Calibration:
        """Measures the device's ceilings: the quick calibration, which has no rates.

        Raises:
            PeakwardError: The device does not exist here, or the calibration failed.
            KeyboardInterrupt: Ctrl-C: there is no case that could end alone.
        """
        watch = assemble.Stopwatch()
        environment = self.environment(device_type)
        busy = self._busy_reason(device_type)
        answer = self._ask(CalibrateRequest(device_type=device_type), CALIBRATE_TIMEOUT_S).answer
        if isinstance(answer, Failed):
            _raise_if_interrupted(answer)
            raise PeakwardError(
                f"expected to calibrate {device_type}, got {answer.status}: {answer.reason}"
            )
        assert isinstance(answer, Calibrated)
        return Calibration(
            environment=environment,
            started_at=watch.started_at,
            wall_s=watch.wall_s(),
            matmul=answer.matmul,
            copy_bytes_per_s=answer.copy_bytes_per_s,
            copy_size_bytes=answer.copy_size_bytes,
            doubts=tuple(each for each in (busy, answer.doubt) if each is not None),
            host=probe.host(),
        )

    def rates(self, subject: Subject, device_type: DeviceType) -> Rates:
        """Measures one subject; a failure is an absence, with the reason.

        Raises:
            PeakwardError: The device does not exist here.
            KeyboardInterrupt: Ctrl-C, as in `calibrate`.
        """
        self.environment(device_type)
        request = RatesRequest(device_type=device_type, subject=subject)
        answer = self._ask(request, CALIBRATE_TIMEOUT_S).answer
        if isinstance(answer, Failed):
            _raise_if_interrupted(answer)
            reason = f"{answer.status}: {answer.reason}"
            return Rates(absent=(Absence(subject=subject, reason=reason),))
        assert isinstance(answer, RatesMeasured)
        return answer.rates

    def first_step(self, case: ModelCase | OperatorCase) -> FirstStep | None:
        """The causes of the time of a fresh process's first step; None where that process failed."""
        answer = self._ask(FirstStepRequest(case=case), TIMEOUT_S, fresh=True).answer
        return answer.first_step if isinstance(answer, FirstStepProfiled) else None

    def profile(
        self,
        case: LeverCase | OperatorCase,
        path: Path,
        *,
        n_steps: int = 3,
        with_stack: bool = False,
        timeout_s: float = TIMEOUT_S,
        on_event: OnEvent | None = None,
    ) -> Profiled | Failed:
        """Writes a trace of some steps of a warm case: gzipped Chrome JSON, with named ranges.

        Every failure, also Ctrl-C and the time limit, is the answer and leaves no file. A profiler
        stays attached to the driver, so only further profiles may follow in that worker.

        Raises:
            PeakwardError: The path is taken, or its folder cannot be written; there is no step to
            profile; the device does not exist here.
        """
        if n_steps < 1:
            raise PeakwardError(f"expected at least one step to profile, got {n_steps}")
        self.environment(case.device)
        with written_beside(path) as scratch:
            request = ProfileRequest(
                case=case, path=str(scratch), n_steps=n_steps, with_stack=with_stack
            )
            answer = self._ask(request, timeout_s, on_event=on_event).answer
            self._attached = self._process is not None
            if isinstance(answer, Failed):
                return answer
            assert isinstance(answer, Profiled)
            scratch.rename(path)
        return msgspec.structs.replace(answer, path=str(path))

    def record_memory(
        self,
        case: ModelCase,
        path: Path,
        *,
        timeout_s: float = TIMEOUT_S,
        on_event: OnEvent | None = None,
    ) -> MemoryRecorded | Failed:
        """Writes a snapshot of all allocations of two steps of a case: gzipped, as torch dumps them. On
        a GPU it also writes a trace of the second step beside it: `<path>.trace.json.gz`.

        Failures are as those of `profile`. As there, only profiles may follow, because a CPU's snapshot
        takes a profiler.

        Raises:
            PeakwardError: The path is taken, or its folder cannot be written; the device does not exist
            here.
        """
        self.environment(case.device)
        with written_beside(path) as scratch:
            request = MemoryRequest(case=case, path=str(scratch))
            answer = self._ask(request, timeout_s, on_event=on_event).answer
            self._attached = self._process is not None
            if isinstance(answer, Failed):
                return answer
            assert isinstance(answer, MemoryRecorded)
            scratch.rename(path)
            trace = None
            if answer.trace is not None:
                trace = path.with_name(f"{path.name}.trace.json.gz")
                Path(answer.trace).rename(trace)
        return msgspec.structs.replace(
            answer, path=str(path), trace=None if trace is None else str(trace)
        )

    def _ask(
        self,
        request: Request,
        timeout_s: float,
        *,
        fresh: bool = False,
        on_event: OnEvent | None = None,
    ) -> Ended:
        """Has the request answered; a second time where its worker was ended from outside.

        There is no second time where the worker was ended for lack of memory, which the machine would
        lack again, nor where a worker could not start in its time. The next run tries these again.

        Raises:
            OutOfTimeError: `left_s` ended first. The worker is ended with it.
        """
        ended = self._ask_once(request, timeout_s, fresh=fresh, on_event=on_event)
        if not _was_taken_away(ended.answer):
            return ended
        ended = self._ask_once(request, timeout_s, fresh=fresh, on_event=on_event)
        if not isinstance(ended.answer, Failed):
            return ended
        twice = f"{ended.answer.reason}, tried twice"
        return Ended(msgspec.structs.replace(ended.answer, reason=twice), ended.turn)

    def _ask_once(
        self, request: Request, timeout_s: float, *, fresh: bool, on_event: OnEvent | None
    ) -> Ended:
        """The answer of one worker, which is then kept or ended."""
        self._interrupts.raise_if_stopping()
        left_s = self._expect_time()
        tell = on_event or self._on_event
        with self._interrupts:
            alone = not isinstance(request, ProfileRequest | MemoryRequest)
            ended = self._process is not None and self._process.has_ended
            if fresh or ended or (self._attached and alone):
                self.close()
            cold = fresh and isinstance(request, MeasureRequest)
            is_new = self._process is None
            try:
                process = self._process or self._start(tell, cold=cold)
            except OSError as error:
                reason = f"no worker could be started: {error.strerror}"
                return Ended(Failed(status="crashed", reason=reason, ended_by="outside"), None)
            was_ready = process.worker_pid is not None
            conversation = Conversation(process, self._interrupts, tell)
            try:
                answer = conversation.ask(request, timeout_s, left_s)
                released = None if isinstance(answer, Failed) else conversation.released()
            except BaseException:
                # Whatever broke the conversation, a late answer must not reach the next request.
                self.close()
                raise
        if is_new and not was_ready and conversation.begun_s is not None:
            self._start_s = conversation.begun_s - process.made_s
        self._quiet_since_s = monotonic()
        if released is None or not released.clean or fresh:
            self.close()
        else:
            self._held_bytes = released.held_bytes
        return Ended(answer, conversation.last.turn)

    def _expect_time(self) -> float:
        """The time that a request which begins now may take.

        Raises:
            OutOfTimeError: No time is left.
        """
        left_s = self.left_s()
        if left_s <= 0:
            raise OutOfTimeError("no time in the budget was left")
        return left_s

    def _start(self, tell: OnEvent, *, cold: bool) -> WorkerProcess:
        """A new worker, or a spare one.

        A cold worker finds the compiler's disk cache empty, so that compilation is measured in full;
        for other workers the cache saves minutes.
        """
        tell(Event(stage="starting"))
        while self._spares and not cold:
            self._process = self._spares.pop(0)
            if not self._process.has_ended:
                with suppress(WorkerDied, Garbled):
                    self._process.receive(
                        0.0
                    )  # Whether it is ready: then its start is not counted.
                return self._process
            self._process.kill()
        environ = self._environ()
        if cold:
            scratch = self._scratch.enter_context(
                tempfile.TemporaryDirectory(prefix="peakward-", ignore_cleanup_errors=True)
            )
            environ["TORCHINDUCTOR_CACHE_DIR"] = scratch
        self._process = WorkerProcess(self._argv, environ)
        return self._process

    @staticmethod
    def _environ() -> dict[str, str]:
        """The environment of every worker. CUDA is told to count GPUs by bus, because NVML does."""
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ}

    def environment(self, device_type: DeviceType) -> Environment:
        """The environment of a device of this machine, read once.

        Raises:
            PeakwardError: The device does not exist here.
        """
        if device_type not in self._environments:
            self._environments[device_type] = probe.environment(device_type)
        return self._environments[device_type]

    def _busy_reason(self, device_type: DeviceType) -> str | None:
        """The reason to call the device busy. Sampling takes a second, so it is only done before a
        worker is started, which takes several."""
        worker = self._process
        sampled = worker is None and monotonic() - self._quiet_since_s > QUIET_S
        return probe.busy_reason(
            nvml.visible_gpu() if device_type == "cuda" else None,
            own_pids=() if worker is None or worker.worker_pid is None else (worker.worker_pid,),
            own_bytes=self._held_bytes,
            n_samples=probe.N_SAMPLES if sampled else 0,
        )


def _was_taken_away(answer: Answer) -> bool:
    """Whether the worker was ended from outside, through no fault of its case."""
    return (
        isinstance(answer, Failed) and answer.ended_by == "outside" and answer.status == "crashed"
    )


def _raise_if_interrupted(answer: Failed) -> None:
    """Raises KeyboardInterrupt if Ctrl-C ended a request without cases that could end alone."""
    if answer.ended_by == "user":
        raise KeyboardInterrupt
