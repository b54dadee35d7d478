"""A live module under levers in this process: what `isolated.Workers` does where nothing can be sent
elsewhere.

Every arm is a copy of the module, made for it and dropped after it; the user's own is never run.
"""

import copy
import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property

import msgspec
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from peakward.lab.levers.module_check import check_given
from peakward.lab.levers.module_step import ModuleStep, prepared_module
from peakward.lab.levers.prepare import check_together
from peakward.lab.measure import compile_report, failure, jobs, memory, nvml
from peakward.lab.measure.conversation import OnEvent
from peakward.lab.measure.fingerprint import fingerprint, source
from peakward.lab.measure.in_process import gpu_of, type_of
from peakward.lab.measure.isolated import Ended, Workers, ignore
from peakward.lab.measure.messages import (
    Answer,
    Checked,
    CheckRequest,
    Event,
    Failed,
    MeasureRequest,
    NumericsChecked,
    NumericsRequest,
    ProfileRequest,
    Request,
    TurnsRequest,
)
from peakward.lab.measure.profile import profile
from peakward.lab.measure.site import Site
from peakward.lab.measure.snapshot import restored
from peakward.lab.models.given_module import GivenModule
from peakward.lab.models.python_source import raise_as_bad_input
from peakward.lab.numerics.judge import judge
from peakward.lab.numerics.of_module import of_module
from peakward.records.case import (
    AS_WRITTEN,
    BuiltCase,
    DeviceType,
    ModuleCase,
    ModulePass,
    Workload,
)
from peakward.records.errors import PeakwardError

SHARED = (
    "in process: the user's own module stays resident beside the copy that is measured, and the "
    "allocator's and the compiler's caches were not isolated"
)
PROFILED = "in process: a profiler was attached before, and stays so"


def live_case(given: GivenModule, pass_: ModulePass) -> ModuleCase:
    """The case that stands for a live module on its batch.

    Raises:
        PeakwardError: the module lies on several devices, or the batch on another than it; the batch's
            first tensor is not (batch_size, seq_len, …).
    """
    device = type_of(_place(given))
    first = _tensors(given)[0]
    if first.dim() < 2:
        raise PeakwardError(
            f"expected a batch whose first tensor is (batch_size, seq_len, …), got {tuple(first.shape)}"
        )
    precision = "fp32"
    if device == "cuda" and torch.get_float32_matmul_precision() != "highest":
        precision = "tf32"
    return ModuleCase(
        source=f"live:{type(given.module).__name__}",
        fingerprint=_fingerprint(given),
        workload=Workload(batch_size=first.shape[0], seq_len=first.shape[1], pass_=pass_),
        configuration=msgspec.structs.replace(AS_WRITTEN, precision=precision),
        device=device,
    )


def _fingerprint(given: GivenModule) -> str:
    """Of the code of all its modules and of the loss, and of the parameters' content."""
    kinds = dict.fromkeys(type(each) for each in given.module.modules())
    digest = hashlib.sha256("".join(map(source, kinds)).encode())
    digest.update(fingerprint(given.loss or type(given.module).forward, given.module).encode())
    return digest.hexdigest()[:16]


def _tensors(given: GivenModule) -> list[Tensor]:
    leaves = tree_leaves((given.args, given.kwargs))
    return [each for each in leaves if isinstance(each, Tensor)]


def _place(given: GivenModule) -> torch.device:
    held = (*given.module.parameters(), *given.module.buffers())
    places = dict.fromkeys(each.device for each in held)
    if len(places) > 1:
        said = ", ".join(map(str, places))
        raise PeakwardError(
            f"expected a module on one device, got one on {said}: move it with .to()"
        )
    place = next(iter(places), torch.device("cpu"))
    for each in _tensors(given):
        if each.device != place:
            raise PeakwardError(
                f"expected a batch on the module's device {place}, got a tensor of it on {each.device}: "
                "move one of the two with .to()"
            )
    return place


class LiveSite(Site):
    """This process, whose devices the user's own code uses too."""

    def __init__(self, place: torch.device) -> None:
        self._place = place

    @cached_property
    def _gpu(self) -> nvml.Gpu | None:
        return gpu_of(type_of(self._place))

    def enter(self, device_type: DeviceType) -> None:
        """It is in use already."""

    def meter(self, device_type: DeviceType) -> memory.Meter:
        """Of all that the process allocates."""
        return memory.CudaMeter(None, None) if device_type == "cuda" else memory.CpuMeter()

    def limited(self, _case: BuiltCase) -> AbstractContextManager[None]:
        """A limit would be the user's own code's too."""
        return nullcontext()

    def leave(self, device_type: DeviceType) -> bool:
        """Give back what an arm left. Compiled code of the user's is compiled again when next called."""
        compile_report.reset()
        memory.release(device_type)
        return True


class LiveWorkers(Workers):
    """Measures, times in turn, verifies and profiles in this process; only what needs no module, as a
    calibration, still goes to a worker."""

    rounds = "rounds of one process"

    def __init__(self, given: GivenModule, *, on_event: OnEvent = ignore) -> None:
        super().__init__(on_event=on_event)
        self._given, self._place = given, _place(given)
        self._site = LiveSite(self._place)
        self._profiled = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What its records say of all of them."""
        return (SHARED, PROFILED) if self._profiled else (SHARED,)

    def _busy_reason(self, device_type: DeviceType) -> None:
        """What runs beside is the user's own to know."""

    def _ask(
        self,
        request: Request,
        timeout_s: float,
        *,
        fresh: bool = False,
        on_event: OnEvent | None = None,
    ) -> Ended:
        told: list[Event] = []
        bench = jobs.Bench(self._site, self._prepare, told.append)
        current = torch.cuda.device(self._place) if self._place.type == "cuda" else nullcontext()
        with current, restored(self._given.module, None):
            try:
                answer = self._answer(request, bench)
            except Exception as error:  # noqa: BLE001  a module may raise anything: it is the result
                status, reason = failure.of_exception(error)
                answer = Failed(status=status, reason=reason)
        if answer is None:
            return super()._ask(request, timeout_s, fresh=fresh, on_event=on_event)
        self._site.leave(type_of(self._place))
        return Ended(answer, told[-1].turn if told else None)

    def _answer(self, request: Request, bench: jobs.Bench) -> Answer | None:
        """None for what needs no module."""
        match request:
            case MeasureRequest():
                return jobs.measure(request, bench)
            case TurnsRequest():
                return jobs.time_turns(request, bench)
            case NumericsRequest():
                base, candidate = request.base, request.candidate
                assert isinstance(base, ModuleCase)
                assert isinstance(candidate, ModuleCase)
                subject = of_module(base, candidate, self._copy)
                return NumericsChecked(verdict=judge(subject, request.declared))
            case CheckRequest():
                check_given(request.case, self._copy(request.case))
                return Checked()
            case ProfileRequest():
                self._profiled = request.case.device == "cuda"
                return profile(request, bench)
            case _:
                return None

    @contextmanager
    def _prepare(self, case: BuiltCase) -> Iterator[ModuleStep]:
        assert isinstance(case, ModuleCase)
        check_together(case)
        with prepared_module(case, self._copy(case)) as step:
            yield step

    def _copy(self, _case: ModuleCase) -> GivenModule:
        try:
            module = copy.deepcopy(self._given.module)
        except Exception as error:  # noqa: BLE001  a module may hold anything
            raise_as_bad_input(
                error, "a module that copy.deepcopy can copy, for each lever to have its own"
            )
        return replace(self._given, module=module)
