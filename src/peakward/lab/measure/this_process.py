"""Runs cases under levers in this process, where `isolated.Workers` cannot send them to a worker."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch

from peakward.lab.measure import compile_report, failure, jobs, memory, nvml
from peakward.lab.measure.calibration.rates import rates
from peakward.lab.measure.in_process import gpu_of, type_of
from peakward.lab.measure.isolated import Ended, Workers
from peakward.lab.measure.jobs import Prepared
from peakward.lab.measure.messages import (
    Answer,
    Captured,
    CaptureRequest,
    Checked,
    CheckRequest,
    Event,
    MeasureRequest,
    NumericsChecked,
    NumericsRequest,
    ProfileRequest,
    RatesMeasured,
    RatesRequest,
    Request,
    TurnsRequest,
)
from peakward.lab.measure.process import OnEvent
from peakward.lab.measure.profile import profile
from peakward.lab.measure.site import Site
from peakward.records.case import Case, DeviceType, ModuleCase
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Claim, NumericsVerdict
from peakward.records.op_graph import ModuleCapture

PROFILED = "in process: a profiler was attached before, and stays so"


class LiveSite(Site):
    """This process, whose devices the user's own code uses too."""

    def __init__(self, place: torch.device) -> None:
        self._place = place

    @cached_property
    def _gpu(self) -> nvml.Gpu | None:
        return gpu_of(type_of(self._place))

    def enter(self, device_type: DeviceType) -> None:
        """Does nothing: the device is in use already."""

    def meter(self, device_type: DeviceType) -> memory.Meter:
        """A meter of all that the process allocates."""
        return memory.CudaMeter(None, None) if device_type == "cuda" else memory.CpuMeter()

    def limited(self, _case: Case) -> AbstractContextManager[None]:
        """No limit: it would also limit the user's own code."""
        return nullcontext()

    def leave(self, device_type: DeviceType) -> bool:
        """Gives back the memory that a configuration left. The user's compiled code is compiled again
        at its next call."""
        compile_report.reset()
        memory.release(device_type)
        return True


class ThisProcess(Workers, ABC):
    """Measures, times in turn, verifies and profiles in this process. Only requests that need nothing
    of the user's, such as a calibration, still go to a worker.

    Args:
        place: The device of the user's code.
        site: The site that gives memory back after each request.
    """

    rounds = "rounds of one process"
    profiles_apart = False

    def __init__(self, place: torch.device, site: type[LiveSite] = LiveSite) -> None:
        super().__init__()
        self._place, self._site = place, site(place)
        self._profiled = False

    @property
    def start_s(self) -> float:
        """0: this process already runs."""
        return 0.0

    def prepare(self, n: int) -> None:
        """Starts nothing: cases run in this process."""

    @abstractmethod
    def _kept(self) -> AbstractContextManager[None]:
        """Restores, on leaving, everything that is the user's."""

    @abstractmethod
    def _prepare(self, case: Case) -> AbstractContextManager[Prepared]:
        """The case, ready to run steps."""

    @abstractmethod
    def _judged(self, claims: Sequence[Claim]) -> tuple[NumericsVerdict, ...]:
        """The verdicts on the candidates' numbers."""

    @abstractmethod
    def _captured(self, case: ModuleCase) -> ModuleCapture:
        """The operators of the case."""

    @abstractmethod
    def _check(self, case: ModuleCase) -> None:
        """Raises the fault of the case, if it has one."""

    def _busy_reason(self, device_type: DeviceType) -> None:
        """None: the user knows what else runs on the machine."""

    def _ask(
        self,
        request: Request,
        timeout_s: float,
        *,
        fresh: bool = False,
        on_event: OnEvent | None = None,
    ) -> Ended:
        self._expect_time()
        told: list[Event] = []

        def tell(event: Event) -> None:
            """Acts between steps, because a step that has begun in this process cannot be ended."""
            told.append(event)
            self._expect_time()

        bench = jobs.Bench(self._site, self._prepare, tell)
        current = torch.cuda.device(self._place) if self._place.type == "cuda" else nullcontext()
        with current, self._kept():
            try:
                answer = self._answer(request, bench)
            except OutOfTimeError:
                self._site.leave(type_of(self._place))
                raise
            except Exception as error:  # noqa: BLE001  a user's code may raise anything: it is the result
                answer = failure.of_exception(error)
        if answer is None:
            return super()._ask(request, timeout_s, fresh=fresh, on_event=on_event)
        self._site.leave(type_of(self._place))
        return Ended(answer, told[-1].turn if told else None)

    def _answer(self, request: Request, bench: jobs.Bench) -> Answer | None:
        """The answer; None for a request that needs nothing of the user's."""
        match request:
            case MeasureRequest():
                return jobs.measure(request, bench)
            case TurnsRequest():
                return jobs.time_turns(request, bench)
            case NumericsRequest():
                return NumericsChecked(verdicts=self._judged(request.claims))
            case CheckRequest():
                self._check(request.case)
                return Checked()
            case CaptureRequest():
                return Captured(capture=self._captured(request.case))
            case RatesRequest(subject="launches", device_type=device_type):
                # The user's steps are issued by this process; a worker would take ten seconds to start.
                return RatesMeasured(rates=rates("launches", device_type))
            case ProfileRequest():
                self._profiled = request.case.device == "cuda"
                return profile(request, bench)
            case _:
                return None
