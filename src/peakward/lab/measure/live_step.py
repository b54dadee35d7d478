"""Runs a live step under levers in this process: each call is the user's function and uses its tensors.

torch's global settings are kept and restored.
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import get_args

import msgspec
import torch
from torch import nn

from peakward.lab.data.given_loader import kept_loader
from peakward.lab.levers.given_step import (
    Given,
    GivenStep,
    StepSeen,
    check_step,
    given_step,
    schedulers,
)
from peakward.lab.measure.in_process import SHARED, UNKNOWN, fingerprint, place_of, type_of
from peakward.lab.measure.this_process import PROFILED, ThisProcess
from peakward.lab.models.snapshot import Snapshot
from peakward.lab.models.torch_settings import kept_settings, matmul_precision
from peakward.lab.numerics.of_step import judge_step
from peakward.records.case import (
    AS_WRITTEN,
    Case,
    DeviceType,
    Handle,
    ModuleCase,
    Optimizer,
    Precision,
    StepCase,
)
from peakward.records.errors import PeakwardError
from peakward.records.lever import Claim, NumericsVerdict
from peakward.records.op_graph import ModuleCapture


def live_case(
    given: Given, *, name: str, tokens_per_step: float | None, seen: StepSeen | None = None
) -> StepCase:
    """The case that stands for the step. It differs from every other case: the tensors that the
    function holds, such as its data, are not known, so no stored result may pass for its own.

    Args:
        seen: what calls of the step showed.

    Raises:
        PeakwardError: The step runs on neither cpu nor cuda, or as `matmul_precision`.
    """
    device = type_of(_place(given))
    own = None if seen is None else seen.precision
    written = msgspec.structs.replace(
        AS_WRITTEN,
        precision=own or _stored_in(given.model) or _of_matmuls(device),
        attention="naive" if seen is not None and seen.writes_attention else "as-written",
        optimizer=_implementation(given.optimizer),
    )
    handles = {"model": given.model, "optimizer": given.optimizer, "loader": given.loader}
    code = f"{fingerprint(given.step, given.model)} {uuid.uuid4()}"
    return StepCase(
        name=name,
        fingerprint=hashlib.sha256(code.encode()).hexdigest()[:16],
        device=device,
        tokens_per_step=tokens_per_step,
        handles=tuple(name for name in get_args(Handle) if handles[name] is not None),
        written=written,
        waits=() if seen is None else seen.waits,
        configuration=written,
    )


def _of_matmuls(device: DeviceType) -> Precision:
    return "tf32" if device == "cuda" and matmul_precision() != "highest" else "fp32"


def _stored_in(model: nn.Module | None) -> Precision | None:
    kinds = {each.dtype for each in model.parameters()} if model is not None else set()
    return "bf16" if kinds == {torch.bfloat16} else None


def _implementation(optimizer: torch.optim.Optimizer | None) -> Optimizer:
    """The implementation that every group asks for; torch's choice counts as the baseline's."""
    groups = [] if optimizer is None else optimizer.param_groups
    if groups and all(each.get("fused") for each in groups):
        return "adamw-fused"
    looped = groups and all(each.get("foreach") is False for each in groups)
    return "adamw-loop" if looped else "adamw-foreach"


def _place(given: Given) -> torch.device:
    """The device of the model; without a model, the GPU if the process uses one."""
    if given.model is None and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return place_of(None, given.model)


class StepWorkers(ThisProcess):
    """Answers each request from the state that the step was given in."""

    def __init__(self, given: Given) -> None:
        super().__init__(_place(given))
        self._given = given
        self._snapshot: Snapshot | None = None
        """Made once: between requests all is as it was. A check of numbers puts it back seven times."""

    @property
    def device(self) -> DeviceType:
        """The kind of device that the step runs on."""
        return type_of(self._place)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that all its records carry."""
        held = (SHARED,) if self._given.model is not None else (SHARED, UNKNOWN)
        return (*held, PROFILED) if self._profiled else held

    def check_step(self) -> StepSeen:
        """Check that the step can be measured, and tell what its calls showed.

        Raises:
            PeakwardError: see `given_step.check_step`.
        """
        current = torch.cuda.device(self._place) if self._place.type == "cuda" else nullcontext()
        with current, self._kept():
            return check_step(self._given, self.device)

    def _expect_buildable(self, _case: Case) -> None:
        """Accepts every case: the step exists in this process."""

    @contextmanager
    def _kept(self) -> Iterator[None]:
        given = self._given
        if self._snapshot is None:
            self._snapshot = Snapshot(given.model, given.optimizer, schedulers(given.step))
        with kept_settings(), kept_loader(given.loader), self._snapshot.kept():
            yield

    def _prepare(self, case: Case) -> AbstractContextManager[GivenStep]:
        assert isinstance(case, StepCase)
        return given_step(case, self._given)

    def _judged(self, claims: Sequence[Claim]) -> tuple[NumericsVerdict, ...]:
        return tuple(judge_step(self._given, claim, kept=self._kept) for claim in claims)

    def _captured(self, case: ModuleCase) -> ModuleCapture:
        raise PeakwardError(f"expected the live step, got the module {case.source}")

    def _check(self, case: ModuleCase) -> None:
        raise PeakwardError(f"expected the live step, got the module {case.source}")
